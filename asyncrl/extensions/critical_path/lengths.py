"""How many tokens of an episode must follow one another, where its agents work at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.env.protocol import agent_of
from asyncrl.types import TURN_ORDER, Trajectory


class Lengths(NamedTuple):
    """Of one episode, in sampled tokens."""

    total: int
    critical: int
    """Of the longest chain of turns each of which needs the one before."""

    @property
    def acceleration(self) -> float:
        """How many times as long the episode would be, one turn after another; 1 for an episode without tokens."""
        return self.total / self.critical if self.critical else 1.0


def lengths(episode: Sequence[Trajectory]) -> Lengths:
    """Return the lengths of an episode from its trajectories, the main agent's first."""
    total = sum(_sampled(one, number) for one in episode for number in range(len(one.turns)))
    asked = [
        (place, after, _sampled(one, number))
        for one in episode
        for number, (after, place) in enumerate(one.info.get(TURN_ORDER, ()))
    ]
    return Lengths(total, _by_order(asked) if asked else _by_calls(episode))


def _by_order(asked: Sequence[tuple[int, int, int]]) -> int:
    """Return the longest chain of turns each of which was asked for after the one before was answered.

    asked: of each turn how many were answered before it, how many when it was asked for, and its tokens. Such turns
    may have needed one another; those that were asked for meanwhile cannot have.
    """
    longest = [0]
    for place, after, tokens in sorted(asked):
        # Of calls that are in no trajectory nothing is known.
        longest += [longest[-1]] * (place + 1 - len(longest))
        longest.append(max(longest[-1], longest[after] + tokens))
    return longest[-1]


def _by_calls(episode: Sequence[Trajectory]) -> int:
    """Return the longest chain of turns by who called whom.

    All agents that one turn has called work at once, and the turn after it waits for all of them (`info["called_by"]`,
    `info["call_turn"]`). What no turn here has called counts as one after the other.
    """
    called: dict[tuple[str, int], list[Trajectory]] = defaultdict(list)
    first = []
    for one in episode:
        if "call_turn" in one.info:
            called[one.info["called_by"], one.info["call_turn"]].append(one)
        else:
            first.append(one)

    def longest(one: Trajectory) -> int:
        name = agent_of(one.info)
        return sum(
            _sampled(one, number)
            + max((longest(child) for child in called.pop((name, number), ())), default=0)
            for number in range(len(one.turns))
        )

    critical = sum(longest(one) for one in first)
    # What hangs on a turn that is not here is not left out.
    critical += sum(longest(one) for left in list(called.values()) for one in left)
    return critical


def _sampled(one: Trajectory, turn: int) -> int:
    place = one.turns[turn]
    return int(one.loss_mask[place.start : place.end].sum())
