"""Checkpoints in the memory of the trainer's machines."""
