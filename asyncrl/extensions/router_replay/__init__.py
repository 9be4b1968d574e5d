"""Engines record the experts of each token, and the trainer's forward passes take them."""
