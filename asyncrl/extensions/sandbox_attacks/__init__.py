"""Attacks on a sandbox backend: hostile programs, what they must not reach, and the command that carries them out."""
