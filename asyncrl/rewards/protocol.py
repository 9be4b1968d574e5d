"""What a reward is given and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.errors import InfrastructureError
from asyncrl.types import Message


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the policy."""

    prompt: list[Message]
    """The conversation before the policy's last turn."""
    text: str
    """What the policy wrote last, whole: with its reasoning, where that is not split off."""
    reasoning: str
    """What `model.reasoning_format` split off, else empty."""
    row: Mapping[str, Any]
    """The row of the data set: the answer and all other columns."""


@dataclass(frozen=True, slots=True)
class Score:
    """What one answer is worth."""

    total: float
    components: dict[str, float] = field(default_factory=dict)
    """By name of the reward, before weights."""
    extracted: str | None = None
    """What was taken as the answer; None where there was none, or where the reward looks for none."""
    success: bool | None = None
    """Whether the answer is right; None where the reward does not say."""


class NotJudged(InfrastructureError):
    """An answer that could not be judged: a grader that died or was cut off, a function that raised or hung.

    The episode fails as infrastructure does. It never becomes a reward of 0.
    """


class Reward(Protocol):
    """Scores answers. Safe to call from many episodes at once."""

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """Return one score for each completion, in their order. Raises `NotJudged` naming reward, row and value."""
        ...

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """Return why no answer to this row can be right, or None. Does not block for long; starts no process."""
        ...
