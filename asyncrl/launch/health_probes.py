"""Signs of life: an HTTP answer, or a file that is touched again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import aiohttp

from asyncrl.credentials import authorization
from asyncrl.launch.process_group import Child

PROBE_TIMEOUT_S = 5.0
STEADY_S = 15.0


class HttpSigns:
    """A child that announces its address and answers `GET path`."""

    def __init__(self, child: Child, path: str, token: str = "") -> None:
        self.child = child
        self.path = path
        self._headers = authorization(token)

    def forget(self) -> None:
        """Its announcement is removed by whoever starts it."""

    def ready(self) -> bool:
        return self.child.announced()

    def steady(self, serving_s: float) -> bool:
        return serving_s > STEADY_S

    async def alive(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            # A connection of its own: a kept one may lead to the process before.
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http,
                http.get(self.child.url + self.path) as response,
            ):
                return response.status == 200
        return False


class FileSigns:
    """Processes that touch `beats`, one file each, and create `ready_file` when they have started.

    progress: how far their work has come; a new height clears their record.
    """

    def __init__(self, ready_file: Path, beats: list[Path], progress: Callable[[], int]) -> None:
        self.ready_file = ready_file
        self.beats = beats
        self.progress = progress
        self._seen: dict[Path, int] = {}
        self._height = progress()

    def forget(self) -> None:
        for path in (self.ready_file, *self.beats):
            path.unlink(missing_ok=True)
        self._seen.clear()

    def ready(self) -> bool:
        return self.ready_file.exists()

    def steady(self, serving_s: float) -> bool:
        before, self._height = self._height, max(self._height, self.progress())
        return self._height > before

    async def alive(self) -> bool:
        """True when every file has been touched since the last call that said so."""
        found = {path: path.stat().st_mtime_ns for path in self.beats if path.exists()}
        if len(found) < len(self.beats) or any(found[path] == self._seen.get(path) for path in found):
            return False
        self._seen = found
        return True
