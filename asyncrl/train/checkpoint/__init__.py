"""Checkpoints of a training run: their files, and what is written and read."""
