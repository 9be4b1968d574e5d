"""How the learning rate moves over a run: a linear warm-up, then constant, linear or cosine.

    warm-up, step s < W:    (s + 1) / W
    after it, with progress q = (s - W) / (N - W) in [0, 1):
        constant            1
        linear              1 - q
        cosine              (1 + cos(pi q)) / 2

Steps count from 0 to N - 1, so the first step already moves and the last one still does. After the warm-up these are
transformers' `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup`; theirs begins at 0. Adam's step
is as long for a gradient of noise as for one of signal: a run that ends on a decayed rate does not lose in its last
steps what it has learned. Torch-free.
"""

from __future__ import annotations

import math
from typing import Literal


def lr_factor(
    schedule: Literal["constant", "linear", "cosine"], step: int, num_steps: int, warmup_steps: int = 0
) -> float:
    """Return what the learning rate is multiplied with in `step` (from 0) of `num_steps`, in (0, 1]; in the step that
    would follow the last one, 0 for the schedules that fall."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if step >= num_steps:
        return 0.0
    progress = (step - warmup_steps) / (num_steps - warmup_steps)
    return 1.0 - progress if schedule == "linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
