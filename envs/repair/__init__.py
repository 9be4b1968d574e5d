"""Repositories with a fault to find and repair."""
