"""Rewards, each by its values."""
