"""The outer optimizer: SGD with Nesterov momentum on the mean pseudo-gradient (DiLoCo, arXiv 2311.08105).

    b <- mu b + g        update = lr (g + mu b)        theta <- theta - update

Without dampening and weight decay. With mu = 0 and lr = 1 the global weights become the mean of the members'.
Torch-free.
"""

from __future__ import annotations

import numpy as np


def nesterov_step(
    gradient: np.ndarray, momentum_buffer: np.ndarray, learning_rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return `(update, momentum buffer)` of one parameter, both in its shape; the buffer is zero before the first."""
    rate, decay = np.float32(learning_rate), np.float32(momentum)
    buffer = decay * momentum_buffer + gradient
    return rate * (gradient + decay * buffer), buffer
