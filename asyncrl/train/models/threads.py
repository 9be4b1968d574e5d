"""How many threads of the CPU torch uses in this process."""

from __future__ import annotations

import torch


def set_threads(threads: int) -> None:
    """Bound torch's CPU threads; 0 leaves torch's choice."""
    if threads:
        torch.set_num_threads(threads)
