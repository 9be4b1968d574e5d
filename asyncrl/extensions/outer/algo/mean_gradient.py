"""Pseudo-gradients of members that train one policy, and their mean (DiLoCo, arXiv 2311.08105, algorithm 1).

    g_m = theta_global - theta_m        g = (1 / M) sum_m g_m

A member's inner steps moved its weights from the global ones to its own: the difference points back, as a gradient
does. The mean is over the members that contributed. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""float32 values by parameter name."""


def pseudo_gradient(base: Arrays, local: Arrays) -> dict[str, np.ndarray]:
    """Return what a member contributes: global weights minus its own."""
    return {name: base[name] - local[name] for name in base}


def mean_gradient(contributions: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Return the mean of contributions, of which there is at least one, all with the same names and shapes."""
    share = np.float32(1.0 / len(contributions))
    return {name: share * np.sum([one[name] for one in contributions], axis=0) for name in contributions[0]}
