"""ECHO: how many branches leave at a turn, by uncertainty there and confidence before it, and which are pruned.

    H_k = mean negative log-probability of turn k's sampled tokens,   c_k = exp(-H_k)
    C_k = mean of c over the last WINDOW turns up to k,   M = mean of C over all turns of the group
    width_k = round(1 + ALPHA (H_k - min H) / (max H - min H) - BETA (C_k - M) / M),  from 1 to MOST
    pruned at k:  C has fallen DECLINE turns in a row, and C_k < M

Forks are taken most uncertain first, each with its whole width. No branch leaves where a pruned one would have ended: a
run of uncertain turns would otherwise take all branches. A branch that comes to such a turn ends there.

Source: ECHO, arXiv 2602.02150, and its released code (`deepconf_branching.py`: ALPHA 2, BETA 1, 1 to 4 branches, a
window of 4, a decline of 3). Theirs is inside an answer, with entropy and confidence of the whole distribution of each
token and fixed thresholds; here a branch leaves between turns, both are estimated from sampled tokens, and the group
itself gives the scale. Confidence of theirs is the mean surprisal of the likeliest tokens; c is a probability. Its
pruning by a sudden rise of entropy, its clipping and its advantages are not part of this. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from asyncrl.algo.curation.forks import Fork, sites, surprise
from asyncrl.types import Trajectory

ALPHA = 2.0
BETA = 1.0
MOST = 4
"""Branches that leave at one turn."""
WINDOW = 4
"""Turns over which confidence is averaged."""
DECLINE = 3


def by_confidence(trajectories: Sequence[Trajectory], count: int) -> list[Fork]:
    """Return up to `count` forks, those of one turn together."""
    found = list(sites(trajectories))
    if not found:
        return []
    mean = confidence_floor(trajectories)
    low, high = min(h for *_, h in found), max(h for *_, h in found)
    forks: list[Fork] = []
    for place, turn, uncertain in sorted(found, key=lambda site: (-site[2], site[0], site[1])):
        confidences = turn_confidences(trajectories[place], turn + 1)
        if not is_pruned(confidences, mean):
            width = branch_width(uncertain, low, high, grouped(confidences)[-1], mean)
            forks += [Fork(place, turn)] * width
    return forks[:count]


def branch_width(uncertain: float, low: float, high: float, confidence: float, mean: float) -> int:
    """Return the branches that leave at a turn; low, high: the least and the largest uncertainty of the group."""
    spread = (uncertain - low) / (high - low) if high > low else 0.0
    width = round(1 + ALPHA * spread - BETA * (confidence - mean) / mean)
    return min(max(width, 1), MOST)


def is_pruned(confidences: Sequence[float], floor: float) -> bool:
    """True when a branch with these confidences of its turns so far ends here."""
    tail = grouped(confidences)[-DECLINE - 1 :]
    return len(tail) > DECLINE and bool((np.diff(tail) < 0).all()) and bool(tail[-1] < floor)


def grouped(confidences: Sequence[float]) -> np.ndarray:
    """[N] mean confidence of each turn and up to WINDOW - 1 before it."""
    return np.array([np.mean(confidences[max(0, k + 1 - WINDOW) : k + 1]) for k in range(len(confidences))])


def turn_confidences(trajectory: Trajectory, end: int) -> list[float]:
    """Return the geometric mean probability of the sampled tokens of each of the first `end` turns that was sampled."""
    found = [surprise(trajectory, number) for number in range(end)]
    return [math.exp(-one) for one in found if one is not None]


def confidence_floor(trajectories: Sequence[Trajectory]) -> float:
    """Return the mean grouped confidence of all turns of the episodes that count; 0, which prunes nothing, without
    any."""
    found = [grouped(turn_confidences(t, len(t.turns))) for t in trajectories if t.usable]
    return float(np.concatenate(found).mean()) if found else 0.0
