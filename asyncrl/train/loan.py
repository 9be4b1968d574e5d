"""What comes back from the engines to which a trainer lends its GPUs. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Returned:
    """What engines on loan did since they were woken."""

    tokens: int = 0
    """That they computed, read and sampled."""
    all_there: bool = True
    """Whether all of them answered."""
