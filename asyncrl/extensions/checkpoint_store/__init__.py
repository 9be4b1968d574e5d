"""Checkpoints in a store beside the run's folder."""
