"""Reach a target number from given ones."""
