"""What a step's metrics tell of prompts that some engines compute for the others (`engine.prefill`). Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from asyncrl.generation import Prefilled
from asyncrl.types import PREFILLS, Trajectory


def prefill_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return how many prompts of these trajectories were handed over, and how many were not and why; nothing where no
    prompt was to be."""
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        counts.update(trajectory.info.get(PREFILLS, {}))
    return {f"prefill/{one}": float(counts[one]) for one in Prefilled} if counts else {}
