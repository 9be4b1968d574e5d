"""LATR: branches that leave inside a turn, where two tokens were about equally likely, if they lead elsewhere.

    fork at a token:  p2 > TAU_ABS  and  p1 - p2 < TAU_REL,  p1 and p2 being the likeliest two there
    a branch begins with that one of the two that its parent did not take, and LOOK_AHEAD tokens of it are sampled
    pruned:  edit distance to the parent's tokens from there < TAU_ED x the number of tokens compared

What ends a turn within the tokens that are compared has gone its own way and is not pruned.

Source: LATR, arXiv 2510.24302, with its thresholds. There a whole group grows from one prompt, token by token, in one
pass: every rollout branches in order of its tokens until the group is full, takes its likeliest token until then, and
is compared after 20, 30 and 50 tokens. Here branches leave episodes that were sampled as usual, those with the least
p1 - p2 first, and are compared once. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncrl.types import Trajectory

TAU_ABS = 0.25
TAU_REL = 0.15
TAU_ED = 0.4
LOOK_AHEAD = 20
"""Tokens of a branch that are compared, the one it begins with included."""


@dataclass(frozen=True, slots=True)
class TokenFork:
    """Where a branch leaves its parent: in place of a token of it."""

    parent: int
    """Place of the parent among the episodes."""
    turn: int
    place: int
    """Of the token in the parent's `token_ids`."""
    token_id: int
    """What the branch has instead."""
    logprob: float
    """Of that token, in nats."""
    gap: float
    """p1 - p2."""


def token_forks(
    trajectories: Sequence[Trajectory], likeliest: Sequence[Sequence[Mapping[int, float]]]
) -> list[TokenFork]:
    """Return the forks of all episodes, those where the two tokens were most alike first.

    likeliest: log-probabilities of the likeliest tokens at each place of each episode, likeliest first, at least two of
        them; places beyond the end of a list are no forks. Failed episodes have none.
    """
    found = []
    for parent, (t, places) in enumerate(zip(trajectories, likeliest, strict=True)):
        if not t.usable:
            continue
        for number, turn in enumerate(t.turns):
            for place in range(turn.start, min(turn.end, len(places))):
                if t.loss_mask[place]:
                    found += _fork(parent, number, place, int(t.token_ids[place]), places[place])
    return sorted(found, key=lambda fork: (fork.gap, fork.parent, fork.place))


def _fork(parent: int, turn: int, place: int, taken: int, likeliest: Mapping[int, float]) -> list[TokenFork]:
    """Return the fork at one token; none where one token was far likelier, or the parent took a third."""
    # The engine reports the token that was taken, too, wherever it ranks.
    (first, logp_1), (second, logp_2) = list(likeliest.items())[:2]
    p1, p2 = math.exp(logp_1), math.exp(logp_2)
    if taken not in (first, second) or p2 <= TAU_ABS or p1 - p2 >= TAU_REL:
        return []
    other, logprob = (second, logp_2) if taken == first else (first, logp_1)
    return [TokenFork(parent, turn, place, other, logprob, p1 - p2)]


def is_alike(branch: Sequence[int], parent: Sequence[int], ends: bool) -> bool:
    """True when a branch is pruned: its first tokens say nearly what its parent's say.

    parent: the parent's tokens from the fork on, to the end of its turn.
    ends: whether the branch's tokens end its turn.
    """
    compared = min(len(branch), LOOK_AHEAD)
    if ends or len(parent) <= compared:
        return False
    return edit_distance(branch[:compared], parent[:compared]) < TAU_ED * compared


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the least number of insertions, deletions and replacements of a token that make one sequence the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
    return row[-1]
