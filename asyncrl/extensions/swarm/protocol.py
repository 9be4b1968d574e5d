"""What a run asks of the service that keeps the groups of several. `client.py` does it over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Arrived(NamedTuple):
    """A group as the service has it."""

    run: str
    name: str
    body: bytes


class Fetched(NamedTuple):
    """Groups, newest first, and where the next call goes on."""

    store: str
    last: int
    groups: list[Arrived]


class SwarmService(Protocol):
    """What a run asks of the service. Calls raise `AsyncRLError` without a usable answer in time."""

    def publish(self, bodies: Sequence[bytes]) -> int:
        """Leave encoded groups of at most `MAX_GROUP_BYTES`; return how many are new there."""
        ...

    def fetch(self, store: str, after: int, count: int) -> Fetched: ...

    def close(self) -> None: ...
