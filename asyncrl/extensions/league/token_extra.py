"""The states in which the other side of a game moves after the turns of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.data.arrays import array_from_map, array_to_map
from asyncrl.data.fields import Fields
from asyncrl.data.token_extras.kind import Tokens, WithoutFiles
from asyncrl.errors import InputError

NEXT_STATES = "next_states"
"""Key of `Trajectory.extras`: the `NextStates` of an exploiter whose turns are rewarded by the other side's critic
(`policies.NAME.minimax`)."""


@dataclass(frozen=True, slots=True)
class NextStates:
    """The states in which the other side of a game is to move after the turns of a trajectory."""

    token_ids: tuple[np.ndarray, ...]
    """[M] int32 each: what that side has read and sampled in each of its conversations; never re-tokenized."""
    after: tuple[tuple[int, int] | None, ...]
    """[K] for each turn the conversation in which that side moves next, and how many of its tokens are the state; None
    where it does not move next."""


class NextStatesKind(WithoutFiles):
    """Implements `Kind`."""

    name = NEXT_STATES
    read_by_models = False
    of_sampler = False
    large_answers = False

    def collector(self) -> None:
        """None: they are noted at the episode's end, from the conversations of both sides."""

    def request(self, value: Any) -> dict[str, Any]:
        """See `Kind`; engines are asked for none."""
        return {}

    def check_reported(self, message: Mapping[str, Any], value: Any, num_read: int, num_sampled: int) -> None:
        """See `Kind`; engines report none."""

    def reported(self, message: Mapping[str, Any]) -> None:
        """None: engines know nothing of them."""

    def encode(self, value: NextStates) -> dict[str, Any]:
        """See `Kind`."""
        return {
            self.name: {
                "token_ids": [array_to_map(ids, "<i4", "token_ids") for ids in value.token_ids],
                "after": [None if place is None else list(place) for place in value.after],
            }
        }

    def decode(self, fields: Fields, tokens: Tokens) -> NextStates | None:
        """See `Kind`."""
        if not fields.has(self.name):
            return None
        where, num_turns = f"{fields.where}.{self.name}", tokens.num_turns
        own = Fields(fields.take(self.name, dict), where)
        raw, after = own.take("token_ids", list), own.take("after", list)
        own.close()
        if len(after) != num_turns or len(raw) > num_turns:
            raise InputError(
                f"{where} must have a state or null for each of {num_turns} turns, in no more conversations, got "
                f"{len(after)} in {len(raw)}"
            )
        ids = tuple(
            array_from_map(item, "<i4", f"{where}.token_ids[{index}]") for index, item in enumerate(raw)
        )
        for index, one in enumerate(ids):
            if len(one) and one.min() < 0:
                raise InputError(f"{where}.token_ids[{index}] must not be negative, got {one.min()}")
        places = [_place(item, ids, f"{where}.after[{index}]") for index, item in enumerate(after)]
        return NextStates(ids, tuple(places))

    def padded(self, values: Sequence[Any], width: int) -> None:
        """See `Kind`; no model reads it."""

    def keys(self, value: Any, length: int) -> None:
        """See `Kind`; no model reads it."""

    def columns(self, value: NextStates) -> dict[str, Any]:
        """See `Kind`."""
        return {
            "next_conversation": [None if place is None else place[0] for place in value.after],
            "next_tokens": [None if place is None else place[1] for place in value.after],
            "next_token_ids": [ids.tolist() for ids in value.token_ids],
        }

    def token_ids(self, value: NextStates) -> dict[str, np.ndarray]:
        """See `Kind`."""
        return {f"token_ids[{number}]": ids for number, ids in enumerate(value.token_ids)}


def _place(item: Any, ids: tuple[np.ndarray, ...], where: str) -> tuple[int, int] | None:
    """Return [conversation, tokens] as a state of one of the conversations `ids`."""
    if item is None:
        return None
    if type(item) is not list or [type(part) for part in item] != [int, int]:
        raise InputError(f"{where} must be null or [conversation, tokens]")
    conversation, size = item
    if not 0 <= conversation < len(ids) or not 1 <= size <= len(ids[conversation]):
        raise InputError(f"{where} must be within its conversation, got {item}")
    return conversation, size
