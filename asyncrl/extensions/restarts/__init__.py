"""Unfinished groups start over when a version is committed."""
