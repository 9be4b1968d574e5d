"""What a worker may say about a trajectory in `Trajectory.info`: every key has a type and a range, others are refused.

A worker is a process that may have joined the run. The trainer reads these values, so none may have a form that its
readers do not expect. What the trainer itself knows of where a trajectory comes from (`Trajectory.pooled_from`,
`Trajectory.peer`) is no part of `info`, and no part of the wire form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from asyncrl.data.fields import MAX_NUMBER, check_text
from asyncrl.errors import InputError
from asyncrl.types import (
    ANSWER_IDS,
    EXTRACTED,
    GREEDY_REWARD,
    MAX_EXTRACTED,
    MAX_GROUP_SIZE,
    MAX_REWARD,
    MAX_TRAJECTORY_TOKENS,
    OPPONENT,
    SEEDED,
    TURN_ORDER,
)

MAX_NAME = 1024
"""Characters of the name of an agent, a task or an opponent."""
MAX_ANSWER = 2**16
"""Tokens of a task's right answer."""
MAX_TOKEN_ID = 2**31 - 1

Check = Callable[[Any, str], None]


def _whole(high: int, low: int = 0) -> Check:
    """Return the check of an integer from `low` to `high`."""

    def check(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise InputError(f"{where} must be a whole number from {low} to {high}, got {_shown(value)}")

    return check


def _real(limit: float) -> Check:
    """Return the check of a finite number of at most this size."""

    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or not abs(value) <= limit:
            raise InputError(f"{where} must be a number of at most {limit:g} either way, got {_shown(value)}")

    return check


def _flag(value: Any, where: str) -> None:
    if type(value) is not bool:
        raise InputError(f"{where} must be true or false, got {_shown(value)}")


def _name(value: Any, where: str) -> None:
    check_text(value, where)
    if len(value) > MAX_NAME:
        raise InputError(f"{where} must have at most {MAX_NAME} characters, got {len(value)}")


def _version_or_name(value: Any, where: str) -> None:
    """The key of an opponent: a past version of the policy, or an exploiter's name."""
    (_name if type(value) is str else _COUNT)(value, where)


def _answer(value: Any, where: str) -> None:
    if type(value) is not list or not 1 <= len(value) <= MAX_ANSWER:
        raise InputError(f"{where} must be a list of 1 to {MAX_ANSWER} token ids, got {_shown(value)}")
    for index, item in enumerate(value):
        _TOKEN(item, f"{where}[{index}]")


def _turn_order(value: Any, where: str) -> None:
    if type(value) is not list or not 1 <= len(value) <= MAX_TRAJECTORY_TOKENS:
        raise InputError(f"{where} must be a list of pairs, got {_shown(value)}")
    for index, pair in enumerate(value):
        if type(pair) is not list or len(pair) != 2:
            raise InputError(f"{where}[{index}] must be a pair of places, got {_shown(pair)}")
        after, place = pair
        _PLACE(after, f"{where}[{index}][0]")
        _PLACE(place, f"{where}[{index}][1]")
        if after > place:
            raise InputError(f"{where}[{index}]: answer {place} cannot be asked for after {after} answers")


def _extracted(value: Any, where: str) -> None:
    check_text(value, where)
    if len(value) > MAX_EXTRACTED:
        raise InputError(f"{where} must have at most {MAX_EXTRACTED} characters, got {len(value)}")


_COUNT, _TOKEN = _whole(2**53), _whole(MAX_TOKEN_ID)
_INDEX, _PLACE = _whole(MAX_GROUP_SIZE - 1), _whole(MAX_TRAJECTORY_TOKENS)
_INFO: Mapping[str, Check] = {
    "agent": _name,
    "agent_name": _name,
    ANSWER_IDS: _answer,
    "attempts": _COUNT,
    "branch": _COUNT,
    "branch_of": _INDEX,
    "branch_turn": _PLACE,
    "branches": _COUNT,
    "cached_tokens": _COUNT,
    "call_branch": _COUNT,
    "call_turn": _PLACE,
    "called_by": _name,
    EXTRACTED: _extracted,
    GREEDY_REWARD: _real(MAX_REWARD),
    "hint_turns": _PLACE,
    "housekeeping": _flag,
    "history_forks": _COUNT,
    "history_matches": _flag,
    "of_task": _name,
    OPPONENT: _version_or_name,
    "replay": _name,
    "rollout": _INDEX,
    SEEDED: _COUNT,
    "trained_tokens": _real(MAX_NUMBER),
    TURN_ORDER: _turn_order,
}
"""By key, what its value must be."""


_HOLDS_TOKENS = (ANSWER_IDS,)
"""Keys whose values are token ids."""


def info_token_ids(info: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the ids of all tokens that an `info` holds, by their place, such as `info.KEY`."""
    return {f"info.{key}": np.asarray(info[key], np.int64) for key in _HOLDS_TOKENS if key in info}


def checked_info(raw: Mapping[str, Any], where: str, episode_index: int) -> dict[str, Any]:
    """Return the `info` of the trajectory with this index.

    Raises `InputError` naming the first key that is unknown or has a value that its readers do not expect.
    """
    for key, value in raw.items():
        check = _INFO.get(key)
        if check is None:
            raise InputError(f"{where} has the unknown key {key[:64]!r}")
        check(value, f"{where}.{key}")
    # What branches off, branches off an episode before it: no row is its own ancestor.
    own = raw.get("rollout", episode_index)
    if raw.get("branch_of", -1) >= own:
        raise InputError(
            f"{where}.branch_of must be below {own}, the episode's own index, got {raw['branch_of']}"
        )
    return dict(raw)


def _shown(value: Any) -> str:
    return repr(value)[:64] if not (type(value) is int and abs(value) >= 2**64) else "a huge number"
