"""Checks of a run before it starts."""
