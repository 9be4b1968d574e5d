"""Runs numeric vectors (inputs, params, expected values and gradients) against the algorithm library."""
