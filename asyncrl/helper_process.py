"""A child process that judges what a policy wrote: a hostile answer may kill that, never the service."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.errors import InfrastructureError
from asyncrl.process_start import without_folder
from asyncrl.startup import StartDeadline

READY = b"ready"
LOOK_S = 1.0
"""Between two looks at whether a child that starts makes progress."""


class HelperProcess:
    """Answers requests, JSON lines on its standard input, one after the other. Thread-safe.

    argv: what is started at the first request, and again after it died or missed a deadline. It prints `ready` once it
    can answer, then a line for each request. missing: what to tell a user whose process does not start. env: its
    environment variables; None for those of this process. start_s: how long it may make no progress until then.
    """

    def __init__(
        self,
        argv: Sequence[str],
        missing: str,
        env: Mapping[str, str] | None = None,
        start_s: float = 60.0,
    ) -> None:
        self._argv, self._missing, self._start_s = list(argv), missing, start_s
        self._env = os.environ if env is None else env
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: Any, deadline_s: float) -> str:
        """Return the answer; "" where there is none by the deadline, or the process died of the request.

        Raises `InfrastructureError` if the process does not start.
        """
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                reply = _line(process, deadline_s)
            except OSError:
                reply = b""
            if not reply:
                self._kill()
            return reply.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """End the process. The next request starts another."""
        with self._lock:
            self._kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            try:
                self._process = subprocess.Popen(
                    self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=without_folder(self._env)
                )
            except OSError as error:
                raise InfrastructureError(f"{self._missing} ({error})") from error
            if why := not_ready(self._process, self._start_s):
                self._kill()
                raise InfrastructureError(f"{self._missing} ({why})")
        return self._process

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def not_ready(process: subprocess.Popen[bytes], silence_s: float) -> str:
    """Wait for the child's first line; return "" where that is `ready`, else why it did not start.

    silence_s: how long it may make no progress. On a loaded machine, imports take minutes.
    """
    assert process.stdout is not None
    deadline = StartDeadline(process.pid, silence_s)
    waiting = select.poll()
    waiting.register(process.stdout, select.POLLIN)
    while not waiting.poll(1000 * LOOK_S):
        if deadline.missed():
            return f"it made no progress for {silence_s:g} s"
    line = process.stdout.readline().strip()
    if line == READY:
        return ""
    return f"it printed {line[:200]!r}" if line else "it ended before it was ready"


def _line(process: subprocess.Popen[bytes], deadline_s: float) -> bytes:
    """Return one line of the child's output, empty at its end or at the deadline."""
    assert process.stdout is not None
    # Not `select`, which refuses descriptors from 1024 on.
    waiting = select.poll()
    waiting.register(process.stdout, select.POLLIN)
    return process.stdout.readline() if waiting.poll(1000 * deadline_s) else b""


def few_variables(*more: str) -> dict[str, str]:
    """Return what a child needs of this process's environment variables, none of them secret, and `more` of them."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", *more) if name in os.environ}
