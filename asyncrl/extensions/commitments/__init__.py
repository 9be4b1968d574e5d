"""Engines commit to the hidden states that tokens are sampled from, and the trainer compares them with its own."""
