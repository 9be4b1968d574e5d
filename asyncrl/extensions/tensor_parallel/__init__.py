"""Layers divided over ranks of the trainer."""
