"""Bubblewrap with a warm Python interpreter inside: a tool call costs a fork instead of starting an interpreter.

Each call runs in its own user, pid, mount, network and IPC namespaces with its own /tmp and /dev/shm; `WORKDIR` is
the session's. Other languages, `argv` and persistent processes go through bubblewrap as usual.

A session in which nothing but such calls ran can be made as new (`renew`): every process of a call is gone when the
init of its pid namespace is, and `WORKDIR` is all it could write to that outlives it.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from asyncrl.errors import ConflictError, InfrastructureError
from asyncrl.sandbox.base import in_time
from asyncrl.sandbox.bubblewrap import BubblewrapSandbox
from asyncrl.sandbox.jail import seccomp
from asyncrl.sandbox.jail.client import Channel
from asyncrl.sandbox.jail.streams import BoundedReader
from asyncrl.sandbox.local import GRACE_S, PIPE_GRACE_S, PROGRAMS, Command, Pipes, _feed, rlimits
from asyncrl.sandbox.protocol import WORKDIR, ExecResult, Probe, SandboxProcess, SandboxSpec

JAIL = Path(__file__).with_name("jail")
MODULES = ("kernel", "channel", "zygote_main")
BOOT = """
import sys, types
package = types.ModuleType("asyncrl.sandbox.jail")
sys.modules[package.__name__] = package
for name, text in zip(sys.argv[2::2], sys.argv[3::2]):
    module = types.ModuleType(f"{package.__name__}.{name}")
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""
"""The interpreter inside sees no file of asyncrl: its few modules are passed as text."""


class ZygoteSandbox(BubblewrapSandbox):
    name: ClassVar[str] = "zygote"
    renews: ClassVar[bool] = True
    takes_root: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._channel: Channel | None = None
        self._zygote_job = 0
        self._zygote_ended: asyncio.Future[tuple[dict[str, Any], list[int]]] | None = None
        self._complaints: BoundedReader | None = None
        """What the zygote itself wrote to stderr; jobs have their own."""
        self._booting = asyncio.Lock()
        self._jobs: set[asyncio.Future[tuple[dict[str, Any], list[int]]]] = set()
        """The calls that may still have processes."""
        self._only_jobs = True
        """Whether no program has run in the session but the zygote's."""

    @classmethod
    async def probe(cls) -> Probe:
        found = await super().probe()
        if not found.works:
            return found
        box = cls()
        try:
            await box.start(SandboxSpec())
            result = await box.exec(code="print('works')", timeout_s=10)
        except Exception as error:
            return Probe(cls.name, False, str(error))
        finally:
            await box.stop()
        works = result.stdout == b"works\n"
        return Probe(cls.name, works, "" if works else f"a test program ended with {result}", found.missing)

    def _folder_bytes(self) -> int:
        # The other half is each job's own /tmp and /dev/shm.
        return self.limits.disk_bytes // 2

    async def _prepare(self) -> None:
        await super()._prepare()
        if self.spec.language == "python" and not self.spec.allow_hosts:
            await self._warm()

    async def stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        await super().stop()
        if self._complaints is not None:
            self._complaints.close()

    @property
    def running(self) -> bool:
        """Whether the session can be used: its launcher and its interpreter live, and nobody has stopped it."""
        if self._launcher is None or self._channel is None or self._zygote_ended is None:
            return False
        ended = self._launcher.closed or self._channel.closed or self._zygote_ended.done()
        return self._stopping is None and not ended

    async def renew(self) -> ZygoteSandbox | None:
        """See `Sandbox`: the interpreter goes on.

        None if other programs than Python code have run in the session, if one still runs, or if its folder cannot be
        emptied.
        """
        if not self.running or not self._only_jobs or self._jobs or self._proxies:
            return None
        assert self._launcher is not None
        renewed = copy.copy(self)
        # Nobody who still holds this one reaches the next user's session.
        self._stopping = asyncio.get_running_loop().create_future()
        self._stopping.set_result(None)
        self._channel, self._complaints, self._folder = None, None, -1
        try:
            await self._launcher.request({"op": "clear", "session": self._session, "job": self._zygote_job})
        except InfrastructureError:
            await renewed.stop()
            return None
        except BaseException:
            await renewed.stop()
            raise
        return renewed

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = WORKDIR
    ) -> SandboxProcess:
        self._only_jobs = False
        return await super().open_process(argv, env=env, cwd=cwd)

    async def judge_folder(self, name: str) -> int:
        self._only_jobs = False
        return await super().judge_folder(name)

    async def _run_command(
        self, command: Command, stdin: bytes, timeout_s: float, max_output_bytes: int
    ) -> ExecResult:
        self._only_jobs = False
        return await super()._run_command(command, stdin, timeout_s, max_output_bytes)

    async def _warm(self) -> Channel:
        """Return the running zygote, restarted if it has been killed."""
        async with self._booting:
            if self._channel is not None and self._zygote_ended is not None:
                if not self._channel.closed and not self._zygote_ended.done():
                    return self._channel
                self._channel.close()
            self._channel = await self._boot()
            return self._channel

    async def _boot(self) -> Channel:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened = Channel(ours)
        complaints, write_end = os.pipe2(os.O_CLOEXEC)
        with theirs, open(os.devnull, "r+b") as null, os.fdopen(write_end, "wb") as errors:
            fds = (null.fileno(), null.fileno(), errors.fileno(), theirs.fileno())
            self._zygote_job, self._zygote_ended = await self._spawn(self._zygote_command(), fds, None)
        self._complaints = BoundedReader(complaints, 4096, lambda: None)
        try:
            await opened.request({"op": "hello"})
        except InfrastructureError as error:
            opened.close()
            complaint = (await self._complaints.finish(PIPE_GRACE_S)).decode(errors="replace")
            raise InfrastructureError(f"the warm interpreter did not start: {complaint or error}") from error
        return opened

    def _zygote_command(self) -> Command:
        bounds = rlimits(self.limits)
        environment = self._environment(None)
        config = {
            "socket_fd": 3,
            "rlimits": bounds,
            "disk_bytes": self.limits.disk_bytes,
            "filter": seccomp.build_filter().hex(),
            "preload": self.spec.preload,
            "path": [part for part in environment.get("PYTHONPATH", "").split(":") if part],
        }
        modules = [part for name in MODULES for part in (name, (JAIL / f"{name}.py").read_text())]
        program = ["python3", "-I", "-S", "-B", "-c", BOOT, json.dumps(config), *modules]
        options = [*self._options(environment, WORKDIR), "--", *program]
        # CPU time adds up over all jobs here, and descriptors over all running ones; jobs get their own limits.
        own = {name: bounds[name] for name in ("NPROC", "FSIZE", "CORE")}
        # No filter: it has to make namespaces, and runs only our code.
        return Command(options, {}, rlimits=own, network=PROGRAMS)

    async def exec(
        self,
        argv: Sequence[str] | None = None,
        *,
        code: str | None = None,
        language: str | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = WORKDIR,
    ) -> ExecResult:
        python = code is not None and (language or self.spec.language) == "python"
        # A job's network namespace has no device at all, so it cannot have the proxy's port.
        if argv is None and code is not None and python and not self.spec.allow_hosts:
            timeout_s = self.limits.wall_s if timeout_s is None else timeout_s
            bound = self.limits.output_bytes if max_output_bytes is None else max_output_bytes
            text = code
            return await in_time(
                timeout_s, lambda limit_s: self._run_job(text, stdin, limit_s, bound, env, cwd)
            )
        return await super().exec(
            argv, code=code, language=language, stdin=stdin, timeout_s=timeout_s,
            max_output_bytes=max_output_bytes, env=env, cwd=cwd,
        )  # fmt: skip

    async def _run_job(
        self,
        code: str,
        stdin: bytes,
        timeout_s: float,
        max_output_bytes: int,
        env: Mapping[str, str] | None,
        cwd: str,
    ) -> ExecResult:
        if not self.started or self._stopping is not None:
            raise ConflictError("the sandbox is not running")
        message = {"op": "run", "env": self._environment(env), "cwd": self._inner_path(cwd)}
        started = time.monotonic()
        zygote = await self._warm()
        pipes = Pipes(with_stdin=bool(stdin), with_status=False)
        code_fd = os.memfd_create("code", os.MFD_CLOEXEC)
        try:
            os.write(code_fd, code.encode("utf-8", "surrogatepass"))
            os.lseek(code_fd, 0, os.SEEK_SET)
            job, ended = await zygote.submit(message, (code_fd, *pipes.theirs))
        except BaseException:
            pipes.close_all()
            raise
        finally:
            os.close(code_fd)
        self._jobs.add(ended)
        ended.add_done_callback(self._jobs.discard)
        pipes.close_theirs()

        def kill() -> None:
            zygote.notify({"op": "kill", "job": job})

        streams = [BoundedReader(fd, max_output_bytes, kill) for fd in pipes.outputs]
        feeding = asyncio.create_task(_feed(pipes.stdin, stdin)) if stdin else None
        try:
            body = await self._await_job(zygote, ended, kill, timeout_s)
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            outputs = [await stream.finish(PIPE_GRACE_S) for stream in streams]
        wall_s = time.monotonic() - started
        return self._result(body, outputs, b"", any(s.truncated for s in streams), wall_s)

    async def _await_job(
        self, zygote: Channel, ended: asyncio.Future[Any], kill: Any, timeout_s: float
    ) -> dict[str, Any]:
        """Wait for the job's end: by itself, by its deadline or together with the zygote."""
        assert self._zygote_ended is not None and self._launcher is not None
        zygote_ended, zygote_job = self._zygote_ended, self._zygote_job
        try:
            await asyncio.wait((ended, zygote_ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not ended.done() and not zygote_ended.done()
            if timed_out:
                kill()
                await asyncio.wait(
                    (ended, zygote_ended), timeout=GRACE_S, return_when=asyncio.FIRST_COMPLETED
                )
        except asyncio.CancelledError:
            kill()
            raise
        if ended.done() and ended.exception() is None:
            body = dict(ended.result()[0])
            return body | {"reason": "timeout"} if timed_out else body
        # The whole zygote is gone or stuck: its jobs end with it, and the next call starts another.
        self._launcher.notify({"op": "kill", "job": zygote_job})
        zygote_body, _ = await self._launcher.answer(zygote_ended, GRACE_S)
        if timed_out or zygote_body["reason"] == "memory":
            return {"status": 137, "reason": "timeout" if timed_out else "memory", "error": ""}
        complaint = await self._complaints.finish(PIPE_GRACE_S) if self._complaints else b""
        raise InfrastructureError(
            f"the warm interpreter ended unasked: {zygote_body} {complaint.decode(errors='replace')}"
        )

    def _check_status(self, status: bytes, returncode: int, stderr: bytes) -> int:
        return returncode if not status else super()._check_status(status, returncode, stderr)
