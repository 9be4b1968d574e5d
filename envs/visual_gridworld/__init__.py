"""Navigation on a grid that is seen, not told."""
