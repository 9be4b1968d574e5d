"""Warm sessions between two episodes: starting an interpreter costs ten times what a short program does.

A session is kept once it is as new (`ZygoteSandbox.renew`), and taken by the next episode with an equal spec.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import ClassVar

from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import Sandbox, SandboxSpec
from asyncrl.sandbox.zygote import ZygoteSandbox

MAX_IDLE = 256
"""Sessions kept per event loop, of about 3 MiB each: the episodes of a step end close together."""
IDLE_S = 60.0
"""How long a session waits for an episode."""


class IdleSessions:
    """The sessions of one event loop that wait for an episode. `shared()` gives those of the running one."""

    _by_loop: ClassVar[dict[asyncio.AbstractEventLoop, IdleSessions]] = {}

    def __init__(self) -> None:
        self._boxes: deque[tuple[SandboxSpec, ZygoteSandbox, asyncio.TimerHandle]] = deque()
        self._stopping: set[asyncio.Task[None]] = set()

    @classmethod
    def shared(cls) -> IdleSessions:
        for other in [known for known in cls._by_loop if known.is_closed()]:
            for _, box, _ in cls._by_loop.pop(other)._boxes:
                box.abandon()
        return cls._by_loop.setdefault(asyncio.get_running_loop(), cls())

    async def take(self, spec: SandboxSpec) -> Sandbox:
        """Return a session that is as new, or start one. Raises as `open_sandbox` does."""
        for place in range(len(self._boxes) - 1, -1, -1):
            known, box, expiry = self._boxes[place]
            if known == spec:
                del self._boxes[place]
                expiry.cancel()
                if box.running:
                    return box
                await box.stop()
                return await self.take(spec)
        return await open_sandbox(ZygoteSandbox.name, spec)

    async def give_back(self, spec: SandboxSpec, box: Sandbox) -> None:
        """End the episode's session, and keep it for the next if it can be made as new."""
        renewed = None
        if isinstance(box, ZygoteSandbox) and len(self._boxes) < MAX_IDLE:
            renewed = await box.renew()
        if renewed is not None and len(self._boxes) >= MAX_IDLE:
            # Others have come meanwhile.
            box, renewed = renewed, None
        if renewed is None:
            await box.stop()
            return
        expiry = asyncio.get_running_loop().call_later(IDLE_S, self._expire, renewed)
        self._boxes.append((spec, renewed, expiry))

    def _expire(self, box: ZygoteSandbox) -> None:
        self._boxes = deque(entry for entry in self._boxes if entry[1] is not box)
        task = asyncio.get_running_loop().create_task(box.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
