"""An event loop whose time jumps to the next timer instead of passing: hours of waiting are simulated in seconds.

Whatever reads the loop's clock (`asyncrl.clock.now_s`, `asyncio.sleep`, `asyncio.timeout`) follows it. Nothing may wait
for threads, files or the network: such a wait would never end, and is reported as what it is.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from asyncrl.errors import DeadlineError

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. Time begins at 0 seconds."""

    def __init__(self) -> None:
        self.virtual_s = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.virtual_s


class _Jump(selectors.SelectSelector):
    """Answers at once that nothing is readable, and moves the loop's clock by the time it was to wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlineError("the simulation waits for something that no timer will bring about")
        self._loop.virtual_s += max(0.0, timeout)
        return []


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a virtual clock to its end. Raises `DeadlineError` where it waits for ever."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
