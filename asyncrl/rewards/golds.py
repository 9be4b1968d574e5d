"""Which rows of a data set a reward can ever find right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.rewards.loading import load_reward


def gold_check(
    spec: str | Sequence[str | Mapping[str, Any]],
) -> Callable[[Mapping[str, Any]], str | None] | None:
    """Return what says of a row why no answer to it can be right, or None; None without a reward.

    Raises `ConfigError` for a reward that there is not.
    """
    return load_reward(spec).check_row if spec else None
