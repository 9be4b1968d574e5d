"""When each fragment is exchanged: every H steps, at steps that are spread over those H.

Source: Streaming DiLoCo (arXiv 2501.18512): of P fragments, fragment p is due when t - floor(p H / P) is a multiple
of H, so that at any time only a part of the weights is on its way. One fragment is DiLoCo. Torch-free.
"""

from __future__ import annotations


def due_fragments(step: int, every: int, count: int) -> list[int]:
    """Return the fragments that are due when `step` inner steps have been taken; none before the first one."""
    return [number for number in range(count) if step > 0 and (step - number * every // count) % every == 0]
