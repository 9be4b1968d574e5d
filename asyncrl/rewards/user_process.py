"""Processes that call a user's function, several at once, each of which a time limit may end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from asyncrl.helper_process import not_ready
from asyncrl.rewards.protocol import NotJudged

START_S = 300.0
"""How long it may make no progress before it is ready: a user's module may wait for a server, or load a model."""
LINE_BYTES = 1 << 26
GRACE_S = 10.0


class UserProcess:
    """Answers requests by processes that are started when they are needed and ended when a call takes too long.

    first: the first line of their input. count: how many there may be. With one, its requests run together; else each
    has one at a time. what: the function, for errors.
    """

    def __init__(self, argv: Sequence[str], first: Any, count: int, what: str) -> None:
        self._argv, self._first, self._what = list(argv), json.dumps(first).encode() + b"\n", what
        self._count, self._shares = count, count == 1
        self._lock = threading.Condition()
        self._free: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._shared: _Worker | None = None
        atexit.register(self.close)

    async def ask(self, items: str, timeout_s: float) -> dict[str, Any]:
        """Return the reply to a request. Raises `TimeoutError`; `NotJudged` if the process does not start or ends."""
        return await asyncio.to_thread(self._ask, items, timeout_s)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            workers, self._all = list(self._all), set()
            self._free, self._shared = [], None
        for worker in workers:
            worker.kill()

    def _ask(self, items: str, timeout_s: float) -> dict[str, Any]:
        worker = self._take()
        reply: dict[str, Any] | None = None
        try:
            reply = worker.ask(items, timeout_s)
            return reply
        finally:
            self._give_back(worker, usable=reply is not None)

    def _take(self) -> _Worker:
        with self._lock:
            if self._shares:
                if self._shared is None or self._shared.ended:
                    self._shared = self._started(self._reserve())
                return self._shared
            while not self._free and len(self._all) >= self._count:
                self._lock.wait()
            if self._free:
                return self._free.pop()
            worker = self._reserve()
        return self._started(worker)

    def _reserve(self) -> _Worker:
        worker = _Worker(self._argv, self._what, self._shares)
        self._all.add(worker)
        return worker

    def _started(self, worker: _Worker) -> _Worker:
        try:
            worker.start(self._first)
        except BaseException:
            # Else its place would be taken for good, and calls would wait for it.
            self._give_back(worker, usable=False)
            raise
        return worker

    def _give_back(self, worker: _Worker, usable: bool) -> None:
        with self._lock:
            if usable and not worker.ended:
                if not self._shares and worker in self._all:
                    self._free.append(worker)
            else:
                self._all.discard(worker)
                if self._shared is worker:
                    self._shared = None
                worker.kill()
            self._lock.notify_all()


class _Worker:
    """One process."""

    def __init__(self, argv: Sequence[str], what: str, shares: bool) -> None:
        self._argv, self._what, self._shares = argv, what, shares
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self._lock = threading.Condition()
        self._replies: dict[int, dict[str, Any]] = {}
        self.ended = False

    def start(self, first: bytes) -> None:
        """Start it and wait until it has imported the function. Raises `NotJudged`."""
        process = self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None and process.stdout is not None
        # One that has ended already says so by its output, which has ended, too.
        with contextlib.suppress(OSError):
            process.stdin.write(first)
            process.stdin.flush()
        if why := not_ready(process, START_S):
            self.ended = True
            raise NotJudged(
                f"reward {self._what}: its process did not start: {why}; its error is in this process's log"
            )
        threading.Thread(target=self._read, name=f"reward {self._what}", daemon=True).start()

    def ask(self, items: str, timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its reply. Raises `TimeoutError`, `NotJudged`."""
        number = next(self._numbers)
        assert self._process is not None and self._process.stdin is not None
        with self._lock:
            try:
                head = f'{{"id": {number}, "timeout_s": {timeout_s}, "items": '
                self._process.stdin.write(f"{head}{items}}}\n".encode())
                self._process.stdin.flush()
            except OSError:
                self.ended = True
            # One that all calls share limits each by itself, and is ended only if it does not do that.
            limit_s = timeout_s + (GRACE_S if self._shares else 0.0)
            if not self._lock.wait_for(lambda: number in self._replies or self.ended, limit_s):
                raise TimeoutError
            if number not in self._replies:
                raise NotJudged(f"reward {self._what}: its process ended before it returned")
            return self._replies.pop(number)

    def kill(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # With what the function started.
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while line := self._process.stdout.readline(LINE_BYTES):
            try:
                reply = json.loads(line)
            except ValueError:
                break
            with self._lock:
                self._replies[reply["id"]] = reply
                self._lock.notify_all()
        with self._lock:
            self.ended = True
            self._lock.notify_all()
