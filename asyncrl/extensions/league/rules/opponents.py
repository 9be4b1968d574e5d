"""Who plays the other side of a two-player game: the policy itself, or a member of a population of its past versions.

    members of version v: the newest `size` of the versions 0, every, 2 every, ... below v
    uniform:      all alike
    prioritised:  in proportion to (1 - p)^power, p the policy's win rate against the member
    variance:     in proportion to p (1 - p)

With an exploiter (`exploiter`) copies of it are members, too, and in a quarter of the groups it plays itself.

Source: fictitious self-play and prioritised fictitious self-play as in AlphaStar (Vinyals et al. 2019, Nature 575), of
which `power` 2 is the published "hard" weighting, and the share of plain self-play. A win counts 1, a draw 1/2. The win
rate is a decayed mean, because the policy changes, which starts at 1/2. Torch-free.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from asyncrl.extensions.league.opponent import NEWEST, Opponent

DECAY = 0.9
"""What is left of earlier games with a member when a group of further ones is observed."""
PRIOR_GAMES = 2.0
"""Games with a score of 1/2 that a member starts with."""
EXPLOITED = 0.25
"""Share of the groups in which an exploiter plays to be trained."""
HOPELESS = 0.1
"""Win rate of an exploiter below which it also meets past versions of the policy."""


@dataclass(frozen=True, slots=True)
class Population:
    """Which past versions there are, and how one is chosen."""

    choose: Literal["uniform", "prioritised"]
    every: int
    """Every this many versions one becomes a member."""
    size: int
    """Members at a time."""
    self_play: float
    """Share of groups in which the policy plays both sides."""
    power: float = 2.0
    seed: int = 0
    exploiter: str = ""
    """Name of the policy that is trained against this one alone; "" for none."""

    def members(self, version: int) -> list[int]:
        """Return the members from which groups are dealt opponents at `version`, oldest first."""
        newest = (version - 1) // self.every
        return [number * self.every for number in range(max(0, newest - self.size + 1), newest + 1)]

    def served(self, version: int, max_staleness: int) -> list[int]:
        """Return the versions that engines hold when they serve `version`: those that groups of any admission which is
        not yet overdue may play."""
        oldest = max(0, version - max_staleness - 1)
        return sorted({member for v in range(oldest, version + 2) for member in self.members(v)})

    def most_served(self, max_staleness: int) -> int:
        """Return the most that `served` may be."""
        return self.size + -(-(max_staleness + 2) // self.every)

    def deal(
        self, seq: int, version: int, win_rates: Mapping[int | str, float], joined: Sequence[int] = ()
    ) -> Opponent | None:
        """Return who plays against the policy in the group of task number `seq`, None for the policy itself.

        win_rates: the policy's, by `Opponent.key`; 1/2 where none is known. joined: versions of the exploiter of which
        copies have joined, oldest first; the newest `size` are members. Depends on nothing else but the seed.
        """
        rng = random.Random(f"opponent {self.seed} {seq}")
        past = self.members(version)
        if self.exploiter and rng.random() < EXPLOITED:
            return self._exploited(rng, past, win_rates)
        members = [Opponent(member, main=True) for member in past]
        members += [Opponent(member, main=True, policy=self.exploiter) for member in joined[-self.size :]]
        if not members or rng.random() < self.self_play:
            return None
        keys = [member.key for member in members]
        chosen = rng.choices(members, weights_of(self.choose, keys, win_rates, self.power))[0]
        return replace(chosen, main=rng.random() < 0.5)

    def _exploited(
        self, rng: random.Random, past: Sequence[int], win_rates: Mapping[int | str, float]
    ) -> Opponent:
        """Return the exploiter's game: against the newest version or, where it loses nearly all of these, a past one
        in half of them."""
        game = Opponent(NEWEST, main=rng.random() < 0.5, policy=self.exploiter)
        if 1.0 - win_rates.get(game.key, 0.5) >= HOPELESS or not past or rng.random() < 0.5:
            return game
        games = [replace(game, against=member) for member in past]
        weights = weights_of("variance", [one.key for one in games], win_rates, self.power)
        return rng.choices(games, weights)[0]


def weights_of(
    choose: Literal["uniform", "prioritised", "variance"],
    members: Sequence[int | str],
    win_rates: Mapping[Any, float],
    power: float,
) -> list[float]:
    """Return unnormalised probabilities of members; all alike where every one of them is always beaten."""
    if choose == "uniform":
        return [1.0] * len(members)
    rates = [win_rates.get(member, 0.5) for member in members]
    weights = [p * (1.0 - p) if choose == "variance" else (1.0 - p) ** power for p in rates]
    return weights if sum(weights) > 0 else [1.0] * len(members)


def score(rewards: Sequence[float]) -> float:
    """Return the points of games by their rewards: 1 for a win, 1/2 for a draw."""
    return sum(1.0 if reward > 0 else 0.5 if reward == 0 else 0.0 for reward in rewards)


@dataclass(frozen=True, slots=True)
class Record:
    """Decayed games with a member and their points."""

    points: float = 0.5 * PRIOR_GAMES
    games: float = PRIOR_GAMES

    @property
    def win_rate(self) -> float:
        return self.points / self.games

    def after(self, points: float, games: int) -> Record:
        """Return the record with a further group of games."""
        if not games:
            return self
        return Record(DECAY * self.points + points, DECAY * self.games + games)
