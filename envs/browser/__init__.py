"""A web shop in a real browser."""
