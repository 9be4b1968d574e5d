"""asyncrl's end of the launcher's socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import asyncrl
from asyncrl.errors import InfrastructureError, InputError
from asyncrl.sandbox.jail import channel

BOOT_TIMEOUT_S = 30.0
ROOT = str(Path(asyncrl.__file__).resolve().parents[1])
"""The folder that holds the package: the launcher runs without site-packages, which keeps it small to fork."""


class Channel:
    """Requests over a packet socket, each answered once, in any order."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._ids = itertools.count(1)
        self.closed = False
        self._loop.add_reader(sock, self._on_readable)

    async def submit(
        self, message: dict[str, Any], fds: tuple[int, ...] = ()
    ) -> tuple[int, asyncio.Future[tuple[dict[str, Any], list[int]]]]:
        """Send; returns the request's id and the future of its answer (body, descriptors)."""
        if self.closed:
            raise InfrastructureError("the sandbox launcher has ended")
        number = next(self._ids)
        future = self._loop.create_future()
        self._waiting[number] = future
        try:
            await self._send({"id": number, **message}, fds)
        except BaseException:
            del self._waiting[number]
            raise
        return number, future

    async def request(
        self, message: dict[str, Any], fds: tuple[int, ...] = (), timeout_s: float = BOOT_TIMEOUT_S
    ) -> tuple[dict[str, Any], list[int]]:
        """Send and wait. Raises `InfrastructureError` on refusal, silence or the other side's end."""
        _, future = await self.submit(message, fds)
        return await self.answer(future, timeout_s)

    async def answer(
        self, future: asyncio.Future[tuple[dict[str, Any], list[int]]], timeout_s: float
    ) -> tuple[dict[str, Any], list[int]]:
        try:
            body, fds = await asyncio.wait_for(future, timeout_s)
        except TimeoutError as error:
            raise InfrastructureError(
                f"the sandbox launcher did not answer within {timeout_s:g} s"
            ) from error
        if "failed" in body:
            raise InfrastructureError(f"the sandbox launcher refused: {body['failed']}")
        return body, fds

    def notify(self, message: dict[str, Any]) -> None:
        """Send without waiting for an answer; used to kill."""
        with contextlib.suppress(OSError):
            channel.send(self._sock, {"id": 0, **message})

    async def _send(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        for _ in range(5000):
            try:
                channel.send(self._sock, message, fds)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except ValueError as error:
                raise InputError(str(error)) from error
            except OSError as error:
                raise InfrastructureError(f"the sandbox launcher is gone: {error}") from error
        raise InfrastructureError("the sandbox launcher has stopped reading")

    def _on_readable(self) -> None:
        try:
            received = channel.receive(self._sock)
        except BlockingIOError:
            return
        if received is None:
            self.close()
            return
        body, fds = received
        future = self._waiting.pop(body["id"], None)
        if future is None or future.done():
            for fd in fds:
                os.close(fd)
            return
        future.set_result((body, fds))

    def close(self) -> None:
        """Idempotent. Pending requests fail."""
        if self.closed:
            return
        self.closed = True
        if not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
        self._sock.close()
        for future in self._waiting.values():
            if not future.done() and not self._loop.is_closed():
                future.set_exception(InfrastructureError("the sandbox launcher has ended"))
                future.exception()  # Mark it as retrieved: perhaps nobody waits anymore.
        self._waiting.clear()


class LauncherClient(Channel):
    """A launcher process. `shared()` gives the one of the running event loop."""

    _by_loop: ClassVar[dict[asyncio.AbstractEventLoop, asyncio.Task[LauncherClient]]] = {}

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            boot = f"import sys; sys.path.insert(0, {ROOT!r}); "
            boot += f"from asyncrl.sandbox.jail.launcher import main; main({fd})"
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", boot],
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Every process of its user could read its environment, so it gets none of ours.
                env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
                cwd="/",
                start_new_session=True,
            )
        super().__init__(ours)
        self.sessions = itertools.count(1)
        self.mounts = False
        """Whether session folders have a quota, and host paths can be mounted."""
        self.uids = False
        """Whether sessions get a fresh user id."""
        self.base = ""
        """Folder, in the launcher's view, with an `etc` for inside and an empty `root`."""
        self.traces = False
        """Whether programs that a judge starts can be distinguished from its own (`jail.trace`)."""
        self.landlock = 0
        """The kernel's Landlock version."""

    @classmethod
    async def shared(cls) -> LauncherClient:
        """Return the running loop's launcher, started on first use and replaced if it has died."""
        loop = asyncio.get_running_loop()
        task: asyncio.Task[LauncherClient] | None
        for other in [known for known in cls._by_loop if known.is_closed()]:
            task = cls._by_loop.pop(other)
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().end()
        task = cls._by_loop.get(loop)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().closed)):
            task = cls._by_loop[loop] = loop.create_task(cls._boot())
        return await asyncio.shield(task)

    @classmethod
    async def close_shared(cls) -> None:
        """End the running loop's launcher and with it every local sandbox of this loop."""
        task = cls._by_loop.pop(asyncio.get_running_loop(), None)
        if task is not None:
            with contextlib.suppress(InfrastructureError):
                await asyncio.to_thread((await task).end)

    @classmethod
    async def _boot(cls) -> LauncherClient:
        client = cls()
        try:
            hello, _ = await client.request({"op": "hello"})
        except BaseException:
            client.end()
            raise
        client.mounts, client.uids = hello["mounts"], hello["uids"]
        client.base, client.landlock, client.traces = hello["base"], hello["landlock"], hello["traces"]
        return client

    def end(self) -> None:
        """Close the socket, which makes the launcher clean up and exit, and wait for that (10 s at most)."""
        with contextlib.suppress(RuntimeError):
            self.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
