"""A policy thinks for so many tokens at most, or at least."""
