"""Supervised passes between the steps."""
