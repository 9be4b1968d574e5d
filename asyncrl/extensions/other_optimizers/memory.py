"""How much optimizers keep. Without the packages that make them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrl.extensions.other_optimizers.muon import is_matrix

BLOCK = 256
"""Elements that share a scale in 8 bits."""


def moment_bytes(optimizer: str, name: str, shape: Sequence[int]) -> int:
    """Return how many bytes an optimizer keeps of a parameter, its float32 copy left out."""
    numel = math.prod(shape)
    if optimizer == "adamw_8bit":
        return 2 * numel + 2 * 4 * -(-numel // BLOCK)
    return 4 * numel * (1 if optimizer == "muon" and is_matrix(name, shape) else 2)
