"""How much of its hint a task needs: by the share of its own group's episodes that failed without one.

    p     = share of the group's unhinted episodes that succeeded
    turns = min(ceil((1 - p) K), max(1, K - 1))  of the K turns of the hint

The harder the task is for the policy, the more of the hint it is given; one that it solves always gets none, and the
last turn is left to it. Without a usable episode nothing is known, and the first turn is given.

Source: the hint share by a sample's difficulty of ADHint, arXiv 2512.13095, which shortens a hint token by token. Here
it is cut between turns, and the limit that leaves one turn is ours. ADHint's advantage by the difficulty of hinted and
other rollouts, and its gradients within hints, are not part of this: hints are never trained here. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrl.algo.curation.early_end import succeeded
from asyncrl.types import Trajectory


def hint_turns(unhinted: Sequence[Trajectory], whole: int) -> int:
    """Return how many of the `whole` turns of a hint are given, by what came of the unhinted episodes."""
    usable = [succeeded(t) for t in unhinted if t.usable]
    if not usable:
        return min(1, whole)
    failures = len(usable) - sum(usable)
    return min(math.ceil(failures * whole / len(usable)), max(1, whole - 1))
