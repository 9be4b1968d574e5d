"""What the code of the main path asks of a kind of extra: to collect, write, read and leave it out by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from asyncrl.data.fields import Fields


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a decoded extra must fit."""

    loss_mask: np.ndarray
    """[L] bool."""
    num_turns: int


class Collector(Protocol):
    """Collects one kind of extra over an episode."""

    def add(self, piece: Any, start: int, end: int) -> None:
        """Add what came with the tokens [start, end). Raises `InfrastructureError`, `InputError`."""
        ...

    def drop(self, num_tokens: int) -> None:
        """Leave the first `num_tokens` tokens only; those that are dropped were never read by the engine."""
        ...

    def asked(self) -> Any:
        """Return what goes into `GenerateRequest.extras` of the next turn; None for nothing."""
        ...

    def value(self) -> Any:
        """Return what goes into `Trajectory.extras`; None for nothing."""
        ...


class Kind(Protocol):
    """One kind of extra. A trajectory that has none of it has no such key in its `extras`."""

    name: str
    """Its key in `Trajectory.extras`, and in `Generated.extras` where engines report it."""
    read_by_models: bool
    """Whether a model reads it with the tokens; what is only checked or shown stays on the trainer's first rank."""

    of_sampler: bool
    """Whether it says what the model that sampled did with the tokens; another model does not follow that."""
    holds_files: bool
    """Whether `decode` leaves the content of files unread, for `check_files`."""
    large_answers: bool
    """Whether answers that report it may be as large as any."""

    def collector(self) -> Collector | None:
        """Return what collects it over an episode; None where it is noted otherwise."""
        ...

    def request(self, value: Any) -> dict[str, Any]:
        """Return its fields of a request to an engine. value: that of `GenerateRequest.extras`."""
        ...

    def request_files(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return what the requests of one call share: files that several name come once."""
        ...

    def check_reported(self, message: Mapping[str, Any], value: Any, num_read: int, num_sampled: int) -> None:
        """Raise `ValueError` unless what an answer reports of it is what was asked for; nobody else has checked it.

        value: that of the request, None where it has none. num_read, num_sampled: tokens of the request and the answer.
        """
        ...

    def reported(self, message: Mapping[str, Any]) -> Any:
        """Return what a checked answer of an engine reports of it for one turn; None for nothing."""
        ...

    def encode(self, value: Any) -> dict[str, Any]:
        """Return its fields of a trajectory's wire form. Raises `InputError`."""
        ...

    def decode(self, fields: Fields, tokens: Tokens) -> Any:
        """Take its fields, checked against the tokens; None where there are none. Raises `InputError`."""
        ...

    def check_files(self, value: Any, where: str) -> None:
        """Raise `InputError` unless all files in it can be read; this takes too long for an event loop."""
        ...

    def padded(self, values: Sequence[Any], width: int) -> Any:
        """Return what models read of rows of `width` tokens, of each its value or None; only where models do."""
        ...

    def keys(self, value: Any, length: int) -> np.ndarray | None:
        """Return [length,C] int32: what must agree, too, where rows share one of their first `length` tokens.

        None where the token alone decides. Only where models read it.
        """
        ...

    def token_ids(self, value: Any) -> dict[str, np.ndarray]:
        """Return the ids of all tokens that it holds, by their place in it; {} where it holds none."""
        ...

    def columns(self, value: Any) -> dict[str, Any]:
        """Return its values of the columns that its row of the table names; {} where it names none."""
        ...


class WithoutFiles:
    """What a kind answers that holds no files, nor tokens or columns unless it says which."""

    holds_files = False

    def request_files(self, values: Sequence[Any]) -> dict[str, Any]:
        """See `Kind`; there are none."""
        return {}

    def check_files(self, value: Any, where: str) -> None:
        """See `Kind`; there are none."""

    def token_ids(self, value: Any) -> dict[str, np.ndarray]:
        """See `Kind`; there are none."""
        return {}

    def columns(self, value: Any) -> dict[str, Any]:
        """See `Kind`; there are none."""
        return {}
