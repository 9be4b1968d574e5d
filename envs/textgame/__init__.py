"""Small text games."""
