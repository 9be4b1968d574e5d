"""A curriculum proposes tasks and observes their outcomes: a state machine without I/O, clock or hidden randomness.

    pool of N tasks --propose--> tasks to play, and how often --play--> outcomes --observe--> the next state

What it proposes follows from the seed, the state and the number of proposals before, and `observe` is called once for
each version, with the outcomes in the order of their proposals. A run that is killed and resumed from the state of
some version therefore proposes the same tasks again. Torch-free.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.extensions.curriculum import beta
from asyncrl.types import Task


@dataclass(frozen=True, slots=True)
class Proposal:
    """A task to play."""

    place: int
    """Index of the task in the pool."""
    rollouts: int
    """Episodes of its group."""
    predicted: float | None = None
    """Share of them that is expected to succeed; None where the curriculum does not predict it."""
    max_turns: int = 0
    """Turns of an episode, where fewer than the run allows; 0 for as many as it allows."""
    examples: tuple[str, ...] = ()
    """Transcripts of solved tasks that its episodes are shown in their prompt."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal."""

    place: int
    """Index of the task in the pool."""
    rewards: tuple[float, ...]
    """The rewards of its usable episodes; none where all of them failed."""
    successes: tuple[float, ...]
    """The environment's verdict on each, 0 or 1; where it gives none, the reward clipped to [0, 1]."""
    version: int = 0
    """Version of the policy at admission."""
    tokens: int = 0
    """Sampled tokens of all its episodes."""
    turns: tuple[int, ...] = ()
    """The turns of each usable episode, over all of its agents; none in ledgers of before they were noted."""
    example: str = ""
    """Transcript of a success, where the curriculum keeps examples and there is one."""

    @property
    def success(self) -> float:
        """Share of the episodes that succeeded; 0 where there are none."""
        return sum(self.successes) / len(self.successes) if self.successes else 0.0


class Curriculum:
    """Chooses among the tasks of a pool. Subclasses take their settings as keyword-only arguments.

    tasks: the pool. group_size: episodes of a group where the curriculum does not choose their number. seed: of every
    random choice. A constructor raises `ValueError` as "name: what is wrong" for a setting, and `InputError` for tasks
    that it cannot choose among.
    """

    keeps_examples = False
    """Whether outcomes are to hold the transcript of a success."""

    def __init__(self, tasks: Sequence[Task], group_size: int, seed: int) -> None:
        self.tasks = tasks
        self.group_size = group_size
        self.seed = seed

    def rng(self, number: int) -> np.random.Generator:
        """Return the generator of the choices made after `number` proposals."""
        return np.random.default_rng([self.seed, number])

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """Propose `count` tasks; changes nothing.

        number: proposals before these. busy: places of tasks that are waiting or being played, which are proposed only
        where no others are left.
        """
        raise NotImplementedError

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Take in all outcomes of a version, in the order of their proposals. Called for versions without any, too."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return the state as numbers, texts, lists and dictionaries."""
        raise NotImplementedError

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        raise NotImplementedError


class BeliefCurriculum(Curriculum):
    """Keeps a Beta belief about each task's success rate, and proposes tasks by a key that subclasses compute.

    alpha <- 1 + decay (alpha - 1) + successes,   beta <- 1 + decay (beta - 1) + failures

    decay: factor of earlier evidence about a task when it is observed again, since the policy has changed meanwhile.
    """

    def __init__(self, tasks: Sequence[Task], group_size: int, seed: int, decay: float = 1.0) -> None:
        super().__init__(tasks, group_size, seed)
        check_range("decay", decay, 0.0, 1.0)
        self.decay = decay
        self.alpha = np.ones(len(tasks))
        self.beta = np.ones(len(tasks))

    @property
    def mean(self) -> np.ndarray:
        """[N] the expected success rate of each task."""
        return self.alpha / (self.alpha + self.beta)

    def keys(self, rng: np.random.Generator) -> np.ndarray:
        """[N] the tasks with the largest keys are proposed. Ties are broken at random."""
        raise NotImplementedError

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`."""
        rng, mean = self.rng(number), self.mean
        chosen = largest(self.keys(rng), count, busy, rng)
        return [Proposal(place, self.group_size, float(mean[place])) for place in chosen]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Update the beliefs about the tasks that were played."""
        for outcome in outcomes:
            place, successes = outcome.place, sum(outcome.successes)
            failures = len(outcome.successes) - successes
            self.alpha[place] = beta.fade(self.alpha[place], self.decay) + successes
            self.beta[place] = beta.fade(self.beta[place], self.decay) + failures

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return {"alpha": self.alpha.tolist(), "beta": self.beta.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        self.alpha, self.beta = np.array(state["alpha"]), np.array(state["beta"])


def largest(keys: np.ndarray, count: int, busy: Collection[int], rng: np.random.Generator) -> list[int]:
    """Return the places of the `count` largest keys, ties in random order.

    Busy places follow after all others; where there are fewer places than `count`, they are gone through again.
    """
    tie_break = rng.random(len(keys))
    is_busy = np.zeros(len(keys), bool)
    is_busy[list(busy)] = True
    order = np.lexsort((tie_break, -keys, is_busy))
    return [int(order[i % len(order)]) for i in range(count)]


def proportional_keys(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[N] keys whose largest are a draw without replacement, in proportion to `weights` >= 0 (Gumbel top-k)."""
    with np.errstate(divide="ignore"):
        return np.log(weights) + rng.gumbel(size=len(weights))


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise `ValueError` for a setting outside [low, high]."""
    if not low <= value <= high:
        raise ValueError(f"{name}: must be from {low:g} to {high:g}, got {value:g}")
