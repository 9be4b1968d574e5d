"""Weights and optimizer outside of the GPU."""
