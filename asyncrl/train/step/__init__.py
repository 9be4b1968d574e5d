"""One training step: rows, passes, advantages, losses and the gradient."""
