"""Stand-ins for the providers' libraries: their calls, as their documentation gives them, over the loopback cloud."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import Callable
from typing import Any

import aiohttp

from tests.extensions.remote_sandboxes.sandbox_cloud import KILL, STATUS, STDERR, STDIN, STDIN_END, STDOUT

TOKEN = {"Authorization": "Bearer secret"}


class Program:
    """A program on a machine of the cloud."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session, self.socket = session, socket
        self.stdout: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.stderr: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.ended: asyncio.Task[int] = asyncio.create_task(self._read())

    async def _read(self) -> int:
        code = 137
        async for message in self.socket:
            channel, data = message.data[0], message.data[1:]
            if channel == STATUS:
                status = json.loads(data)
                code = int(status["details"]["causes"][0]["message"]) if status["status"] == "Failure" else 0
            else:
                {STDOUT: self.stdout, STDERR: self.stderr}[channel].put_nowait(data)
        self.stdout.put_nowait(None)
        self.stderr.put_nowait(None)
        return code

    async def send(self, channel: int, data: bytes = b"") -> None:
        if not self.socket.closed:
            await self.socket.send_bytes(bytes([channel]) + data)


class Box:
    """A machine of the cloud."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._session = aiohttp.ClientSession(headers=TOKEN)

    @classmethod
    async def create(cls, url: str) -> Box:
        box = cls(url, f"box-{id(asyncio.current_task())}-{asyncio.get_running_loop().time()}")
        async with box._session.post(
            f"{url}/api/v1/namespaces/lab/pods", json={"metadata": {"name": box._name}}
        ) as r:
            assert r.status == 201
        return box

    async def spawn(self, argv: list[str], stdin: bool = True) -> Program:
        query = [("command", part) for part in argv] + [("stdin", str(stdin).lower())]
        url = f"{self._url}/api/v1/namespaces/lab/pods/{self._name}/exec"
        return Program(self._session, await self._session.ws_connect(url, params=query, max_msg_size=0))

    async def delete(self) -> None:
        async with self._session.delete(f"{self._url}/api/v1/namespaces/lab/pods/{self._name}"):
            pass
        await self._session.close()


async def _drain(queue: asyncio.Queue[bytes | None], take: Callable[[str], Any] | None) -> bytes:
    parts = []
    while (data := await queue.get()) is not None:
        parts.append(data)
        if take is not None:
            take(data.decode("utf-8", "surrogateescape"))
    return b"".join(parts)


def e2b(url: str) -> types.ModuleType:
    class CommandExitException(Exception):
        def __init__(self, exit_code: int) -> None:
            super().__init__(f"Command exited with code {exit_code}")
            self.exit_code = exit_code

    class Handle:
        def __init__(self, program: Program, on_stdout: Any, on_stderr: Any) -> None:
            self._program = program
            self._out = asyncio.create_task(_drain(program.stdout, on_stdout))
            self._err = asyncio.create_task(_drain(program.stderr, on_stderr))

        async def wait(self) -> types.SimpleNamespace:
            await asyncio.gather(self._out, self._err)
            if code := await self._program.ended:
                raise CommandExitException(code)
            return types.SimpleNamespace(exit_code=0)

        async def kill(self) -> bool:
            await self._program.send(KILL)
            return True

        async def send_stdin(self, data: str | bytes, request_timeout: float | None = None) -> None:
            await self._program.send(STDIN, data.encode() if isinstance(data, str) else data)

        async def close_stdin(self, request_timeout: float | None = None) -> None:
            await self._program.send(STDIN_END)

    class Commands:
        def __init__(self, box: Box) -> None:
            self._box = box

        async def run(
            self,
            cmd: str,
            background: bool | None = None,
            envs: dict[str, str] | None = None,
            user: str | None = None,
            cwd: str | None = None,
            on_stdout: Any = None,
            on_stderr: Any = None,
            stdin: bool | None = None,
            timeout: float | None = 60,
        ) -> Any:
            if user == "root":
                return types.SimpleNamespace(exit_code=0)  # The cloud's machines come with the folder.
            program = await self._box.spawn(["/bin/bash", "-l", "-c", cmd], bool(stdin))
            handle = Handle(program, on_stdout, on_stderr)
            return handle if background else await handle.wait()

    class AsyncSandbox:
        commands: Commands
        _box: Box

        @classmethod
        async def create(
            cls,
            template: str | None = None,
            timeout: int | None = None,
            allow_internet_access: bool | None = None,
        ) -> AsyncSandbox:
            assert allow_internet_access is False
            self = cls()
            self._box = await Box.create(url)
            self.commands = Commands(self._box)
            return self

        async def kill(self) -> bool:
            await self._box.delete()
            return True

    module = types.ModuleType("e2b")
    module.AsyncSandbox = AsyncSandbox  # type: ignore[attr-defined]
    return module


def daytona(url: str) -> types.ModuleType:
    class Process:
        def __init__(self, box: Box) -> None:
            self._box = box
            self._programs: dict[str, Program | None] = {}

        async def exec(self, command: str, cwd: str | None = None) -> types.SimpleNamespace:
            program = await self._box.spawn(["/bin/sh", "-c", command], False)
            return types.SimpleNamespace(exit_code=await program.ended, result="")

        async def create_session(self, session_id: str) -> None:
            self._programs[session_id] = None

        async def execute_session_command(self, session_id: str, req: Any) -> types.SimpleNamespace:
            self._programs[session_id] = await self._box.spawn(["/bin/bash", "-c", req.command], True)
            return types.SimpleNamespace(cmd_id="1")

        def _program(self, session_id: str) -> Program:
            program = self._programs[session_id]
            assert program is not None
            return program

        async def get_session_command_logs_async(
            self, session_id: str, command_id: str, on_stdout: Any, on_stderr: Any
        ) -> None:
            program = self._program(session_id)
            await asyncio.gather(_drain(program.stdout, on_stdout), _drain(program.stderr, on_stderr))

        async def get_session_command(self, session_id: str, command_id: str) -> types.SimpleNamespace:
            program = self._program(session_id)
            return types.SimpleNamespace(exit_code=program.ended.result() if program.ended.done() else None)

        async def send_session_command_input(self, session_id: str, command_id: str, data: str) -> None:
            await self._program(session_id).send(STDIN, data.encode("utf-8", "surrogateescape"))

        async def delete_session(self, session_id: str) -> None:
            program = self._programs.pop(session_id, None)
            if program is not None and not program.ended.done():
                await program.send(KILL)

    class AsyncDaytona:
        async def create(self, params: Any, *, timeout: float = 60) -> types.SimpleNamespace:
            assert params.network_block_all
            self._box = await Box.create(url)
            return types.SimpleNamespace(process=Process(self._box))

        async def delete(self, sandbox: Any, timeout: float = 60, wait: bool = False) -> None:
            await self._box.delete()

        async def close(self) -> None:
            pass

    module = types.ModuleType("daytona")
    module.AsyncDaytona = AsyncDaytona  # type: ignore[attr-defined]
    for name in ("CreateSandboxFromImageParams", "CreateSandboxFromSnapshotParams", "SessionExecuteRequest"):
        setattr(module, name, types.SimpleNamespace)
    return module


class _Aio:
    """A call of Modal's library: `f.aio(...)` is the coroutine."""

    def __init__(self, function: Any) -> None:
        self.aio = function


def modal(url: str) -> types.ModuleType:
    class Writer:
        def __init__(self, program: Program) -> None:
            self._program = program
            self._pending: list[tuple[int, bytes]] = []
            self.drain = _Aio(self._drain)

        def write(self, data: bytes) -> None:
            self._pending.append((STDIN, data))

        def write_eof(self) -> None:
            self._pending.append((STDIN_END, b""))

        async def _drain(self) -> None:
            pending, self._pending = self._pending, []
            for channel, data in pending:
                await self._program.send(channel, data)

    class Reader:
        def __init__(self, queue: asyncio.Queue[bytes | None]) -> None:
            self._queue = queue

        async def __aiter__(self) -> Any:
            while (data := await self._queue.get()) is not None:
                yield data

    class ContainerProcess:
        def __init__(self, program: Program, timeout: int | None) -> None:
            self._program = program
            self.stdin, self.stdout, self.stderr = (
                Writer(program),
                Reader(program.stdout),
                Reader(program.stderr),
            )
            self.wait = _Aio(self._wait)
            if timeout is not None:
                self._killing = asyncio.create_task(self._kill_after(timeout))

        async def _kill_after(self, timeout: int) -> None:
            await asyncio.wait((self._program.ended,), timeout=timeout)
            if not self._program.ended.done():
                await self._program.send(KILL)

        async def _wait(self) -> int:
            return await self._program.ended

    class Sandbox:
        def __init__(self, box: Box) -> None:
            self._box = box
            self.exec, self.terminate = _Aio(self._exec), _Aio(box.delete)

        async def _exec(self, *args: str, text: bool = True, timeout: int | None = None) -> ContainerProcess:
            return ContainerProcess(await self._box.spawn(list(args)), timeout)

    async def create(*, app: Any, image: Any, timeout: int, block_network: bool, memory: Any) -> Sandbox:
        assert block_network
        return Sandbox(await Box.create(url))

    async def lookup(name: str, create_if_missing: bool = False) -> object:
        return object()

    Sandbox.create = _Aio(create)  # type: ignore[attr-defined]
    module = types.ModuleType("modal")
    module.Sandbox = Sandbox  # type: ignore[attr-defined]
    module.App = types.SimpleNamespace(lookup=_Aio(lookup))  # type: ignore[attr-defined]
    image = types.SimpleNamespace(debian_slim=object, from_registry=lambda name: object())
    module.Image = image  # type: ignore[attr-defined]
    return module
