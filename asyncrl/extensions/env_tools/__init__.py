"""Environments listed, written, checked and played at a terminal."""
