"""Runs share groups with each other."""
