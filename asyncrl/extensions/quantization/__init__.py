"""Engines sample with weights and activations of eight bits, and the trainer rounds alike."""
