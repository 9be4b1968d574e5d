"""How new global weights enter a member that has trained on since it contributed. Torch-free.

Streaming DiLoCo (arXiv 2501.18512) mixes, which gives up a part of the steps in between:

    theta_m <- alpha theta_m + (1 - alpha) theta_global

After an outage these may be many. Then they are kept, as if they had been taken from the global weights:

    theta_m <- theta_global + (theta_m - theta_m at its contribution)
"""

from __future__ import annotations

import numpy as np

from asyncrl.extensions.outer.algo.mean_gradient import Arrays


def mixed(local: Arrays, merged: Arrays, alpha: float) -> dict[str, np.ndarray]:
    """Return a member's weights: `alpha` of its own and the rest of the global ones; at 0 exactly these."""
    if not alpha:
        return dict(merged)
    own, rest = np.float32(alpha), np.float32(1.0 - alpha)
    return {name: own * local[name] + rest * merged[name] for name in merged}


def carried_over(local: Arrays, contributed: Arrays, merged: Arrays) -> dict[str, np.ndarray]:
    """Return the global weights with all that the member has trained since it contributed."""
    return {name: merged[name] + (local[name] - contributed[name]) for name in merged}
