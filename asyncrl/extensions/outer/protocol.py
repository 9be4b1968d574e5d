"""What a member asks of the outer optimizer's service, for the trainer's first rank. `client.py` does it over HTTP.
Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from asyncrl.extensions.outer.tensors import Shapes


class Member(Protocol):
    """Who a member is, and what all of them must agree on: the section `outer` of its run, which says what each is."""

    @property
    def url(self) -> str: ...
    @property
    def member(self) -> int: ...
    @property
    def members(self) -> int: ...
    @property
    def every(self) -> int: ...
    @property
    def method(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def wait_timeout_s(self) -> float: ...


class Joined(NamedTuple):
    start: bool
    """Whether this member is to send its weights to begin with."""
    rounds: list[int]
    """The rounds of each fragment; -1 where there are no weights yet."""


class Sent(NamedTuple):
    round: int
    """The round that has the contribution, or will have it."""
    repeated: bool
    """Whether its steps had been counted before, by a life of this run that has ended; of weights to begin with,
    whether those of another run have been taken."""


class Fetched(NamedTuple):
    round: int
    kind: str
    """"whole" weights, or an "update" of those of the round before."""
    body: bytes
    members: int
    """How many contributed to the round."""


class OuterService(Protocol):
    """All calls may be repeated. They raise `UnavailableError` without an answer, `ConfigError` for other terms than
    those of the other members, and `ConflictError` when another run has taken this one's place."""

    sent_bytes: int
    received_bytes: int

    def join(self, fragments: Sequence[Shapes], retry_s: float) -> Joined: ...

    def send(self, fragment: int, version: int, body: bytes, start: bool = False) -> Sent: ...

    def fetch(self, fragment: int, wanted: int, have: int, wait_s: float) -> Fetched | None:
        """Return a fragment once it has reached the round `wanted`; None if `wait_s` passes first."""
        ...

    def leave(self) -> None: ...

    def close(self) -> None: ...
