"""Evaluations in which a policy thinks for so many tokens at most, or at least."""
