"""A worker process: `python -m asyncrl.services.env.workers FD PARENT_PID`, started by `process.WorkerProcess` only.

It runs sessions in its own `LocalRuntime` and ends when the socket closes, which the service's death does too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any

from asyncrl.env.hosting.runtime import LocalRuntime
from asyncrl.errors import EnvironmentFailure, InputError
from asyncrl.process_hooks import die_with_parent
from asyncrl.process_start import leave_safe_path
from asyncrl.services.env.workers.channel import Channel
from asyncrl.services.env.workers.messages import action_from_map, error_to_map, opened_to_map, step_to_map
from asyncrl.types import Task

STOP_TIMEOUT_S = 3.0


class WorkerMain:
    """Answers the service's requests, each in a task of its own."""

    def __init__(self) -> None:
        self.runtime = LocalRuntime()
        self.stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel: Channel

    async def run(self, sock: socket.socket) -> None:
        """Serve until asked to stop or until the service is gone."""
        self._channel = await Channel.connect(sock, self._receive, self.stopping.set)
        await self.runtime.start()
        self._channel.send([0, 0])
        await self.stopping.wait()
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.runtime.stop()
        except TimeoutError:
            print(f"environment worker {os.getpid()}: sessions did not close in time", file=sys.stderr)

    def _receive(self, message: Any) -> None:
        number, operation, session, arguments = message
        if operation == "ping":
            self._channel.send([number, self.runtime.overrun])
        elif operation == "stop":
            self.stopping.set()
        elif operation == "path":
            sys.path.extend(entry for entry in arguments if entry not in sys.path)
        else:
            task = asyncio.create_task(self._answer(number, operation, session, arguments))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, operation: str, session: str, arguments: Any) -> None:
        try:
            answer = [number, await self._operate(operation, session, arguments)]
        except Exception as error:
            answer = [number, None, error_to_map(error)]
        try:
            self._channel.send(answer)
        except InputError as error:
            # A value that cannot be packed came from the environment: it is not JSON, or too long.
            failure = EnvironmentFailure(f"environment: the answer to {operation} cannot be sent: {error}")
            self._channel.send([number, None, error_to_map(failure)])

    async def _operate(self, operation: str, session: str, arguments: Any) -> Any:
        if operation == "step":
            action, timeout_s = arguments
            return step_to_map(await self.runtime.step(session, action_from_map(action), timeout_s))
        if operation == "open":
            task, config = arguments
            return opened_to_map(await self.runtime.open(session, Task(**task), config))
        if operation == "close":
            await self.runtime.close(session)
            return None
        raise ValueError(f"unknown operation {operation!r}")


def main(fd: int, parent: int) -> None:
    """Serve on an inherited socket until it closes."""
    leave_safe_path()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A hung worker does not see the socket close.
    die_with_parent()
    if os.getppid() != parent:
        return
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    asyncio.run(WorkerMain().run(sock))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
