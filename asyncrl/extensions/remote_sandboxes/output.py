"""Output that arrives in pieces over a connection, kept up to a limit."""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.sandbox.jail.streams import FLOOD_BYTES


class BoundedOutput:
    """stdout and stderr, the first `limit` bytes of each; `on_flood` is called once if far too much arrives."""

    def __init__(self, limit: int, on_flood: Callable[[], None] = lambda: None) -> None:
        self._limit, self._on_flood = limit, on_flood
        self.kept = (bytearray(), bytearray())
        self._total = 0
        self.truncated = False
        self._flooded = False

    def take(self, is_stderr: bool, data: bytes) -> None:
        buffer = self.kept[is_stderr]
        self._total += len(data)
        self.truncated |= len(data) > self._limit - len(buffer)
        buffer += data[: self._limit - len(buffer)]
        if self._total > self._limit + FLOOD_BYTES and not self._flooded:
            self._flooded = True
            self._on_flood()

    @property
    def stdout(self) -> bytes:
        return bytes(self.kept[0])

    @property
    def stderr(self) -> bytes:
        return bytes(self.kept[1])
