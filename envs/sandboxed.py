"""A sandbox session that an environment opens when it is first needed."""

from __future__ import annotations

import asyncio

from asyncrl.sandbox.backends import choose, open_sandbox, probe
from asyncrl.sandbox.idle import IdleSessions
from asyncrl.sandbox.protocol import ExecResult, Sandbox, SandboxSpec
from asyncrl.sandbox.zygote import ZygoteSandbox

SHOWN_CHARACTERS = 600
"""Characters of a program's output in an observation."""


async def pick_backend(name: str, warm: bool) -> str:
    """Return the backend that `name` stands for.

    "auto" takes the warm Python zygote if it works and is wanted, else what `choose` finds. Raises `ConfigError` if
    no backend isolates here.
    """
    if name == "auto" and warm and (await probe("zygote")).works:
        return "zygote"
    return (await choose(name)).backend


class LazySandbox:
    """One session of a sandbox, started by its first use: an episode that runs nothing costs nothing.

    With `warm` it is a zygote's where that works, and passed on to the next episode, as new (`asyncrl.sandbox.idle`).
    A session that judges takes `fresh`: no program of any episode has run in it.
    """

    def __init__(self, backend: str, spec: SandboxSpec, warm: bool = False, fresh: bool = False) -> None:
        self._backend, self._spec, self._warm, self._fresh = backend, spec, warm, fresh
        self._box: Sandbox | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> Sandbox:
        """Return the session, started."""
        async with self._lock:
            if self._box is None:
                name = await pick_backend(self._backend, self._warm)
                if self._passed_on(name):
                    self._box = await IdleSessions.shared().take(self._spec)
                else:
                    self._box = await open_sandbox(name, self._spec)
            return self._box

    async def close(self) -> None:
        """End the session if it was started."""
        async with self._lock:
            box, self._box = self._box, None
            if box is None:
                return
            if self._passed_on(box.name):
                await IdleSessions.shared().give_back(self._spec, box)
            else:
                await box.stop()

    def _passed_on(self, name: str) -> bool:
        return name == ZygoteSandbox.name and self._warm and not self._fresh


def describe(result: ExecResult, characters: int = SHOWN_CHARACTERS) -> str:
    """Return the result of a program as the model sees it: its output, or why it failed."""
    output = result.text.rstrip("\n")
    if result.timed_out:
        return f"{_cut(output, characters)}\nerror: time limit exceeded".strip()
    if result.out_of_memory:
        return f"{_cut(output, characters)}\nerror: memory limit exceeded".strip()
    if result.returncode != 0:
        reason = result.stderr.decode("utf-8", "replace").strip() or f"exit status {result.returncode}"
        # A traceback names the error at its end, a compiler's message at its beginning.
        error = _cut(reason, characters) if result.phase == "compile" else _cut_front(reason, characters)
        return f"{_cut(output, characters)}\nerror: {error}".strip()
    return _cut(output, characters) if output else "(no output)"


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}... ({len(text)} characters)"


def _cut_front(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"...{text[-characters:]}"
