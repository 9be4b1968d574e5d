"""The engine's commitments to the hidden states that the sampled tokens came from (`commitment`).

They are byte strings, one after the other, each for the next few sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.data.fields import Fields
from asyncrl.data.token_extras.kind import Tokens, WithoutFiles
from asyncrl.errors import InputError
from asyncrl.extensions.commitments.commitment import COMMITMENTS, tokens_of


class CommitmentsCollector:
    """Collects those of each turn."""

    def __init__(self) -> None:
        self._found: list[bytes] = []

    def add(self, piece: Sequence[bytes], start: int, end: int) -> None:
        """See `Collector`."""
        self._found += piece

    def drop(self, num_tokens: int) -> None:
        """See `Collector`. Only sampled tokens have commitments, and these stay."""

    def asked(self) -> None:
        """See `Collector`; whether engines make any is a setting of the run."""

    def value(self) -> tuple[bytes, ...] | None:
        """See `Collector`."""
        return tuple(self._found) or None


class Commitments(WithoutFiles):
    """Implements `Kind`."""

    name = COMMITMENTS
    read_by_models = False
    of_sampler = False
    large_answers = False

    def collector(self) -> CommitmentsCollector:
        """See `Kind`."""
        return CommitmentsCollector()

    def request(self, value: bool) -> dict[str, Any]:
        """See `Kind`."""
        return {"commit": True} if value else {}

    def check_reported(
        self, message: Mapping[str, Any], value: bool | None, num_read: int, num_sampled: int
    ) -> None:
        """See `Kind`: those of all sampled tokens."""
        found = message.get(self.name, [])
        if type(found) is not list or not all(type(one) is bytes for one in found):
            raise ValueError("commitments must be bytes")
        try:
            covered = sum(map(tokens_of, found))
        except ValueError as error:
            raise ValueError(f"commitments: {error}") from None
        if found and not (value and covered == num_sampled):
            raise ValueError(f"commitments must be to {num_sampled} tokens")

    def reported(self, message: Mapping[str, Any]) -> tuple[bytes, ...] | None:
        """See `Kind`."""
        return tuple(message.get(self.name, ())) or None

    def encode(self, value: Sequence[bytes]) -> dict[str, Any]:
        """See `Kind`."""
        return {self.name: list(value)}

    def decode(self, fields: Fields, tokens: Tokens) -> tuple[bytes, ...] | None:
        """See `Kind`."""
        raw, num_sampled = fields.optional(self.name, list, []), int(tokens.loss_mask.sum())
        where = f"{fields.where}.{self.name}"
        try:
            if not all(type(item) is bytes for item in raw):
                raise ValueError("every item must be bytes")
            covered = sum(map(tokens_of, raw))
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
        if raw and covered != num_sampled:
            raise InputError(f"{where} must be for the {num_sampled} tokens sampled, got {covered}")
        return tuple(raw) or None

    def padded(self, values: Sequence[Any], width: int) -> None:
        """See `Kind`; no model reads it."""

    def keys(self, value: Any, length: int) -> None:
        """See `Kind`; no model reads it."""
