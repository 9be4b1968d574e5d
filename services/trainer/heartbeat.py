"""By which the launcher tells that a trainer's process works, and gets on."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from pathlib import Path

from asyncrl.endpoint import stalled_file
from asyncrl.train.engine.progress import Progress

BEAT_S = 1.0


class Heartbeat:
    """Touches a file every second, so that the launcher can tell a suspended process from a working one.

    Once it watches the main thread, it stops when that does not get on, and leaves in the log where it hangs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._progress: Progress | None = None
        self._limit_s = float("inf")
        path.touch()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            if self._progress is not None and self._progress.silent_s > self._limit_s:
                print(
                    f"asyncrl: the trainer hangs: no progress within {self._limit_s:g} s, which follows from "
                    "train.stall_timeout_s; its threads are",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(file=sys.stderr)
                with contextlib.suppress(OSError):
                    stalled_file(self._path).touch()
                return
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def watch(self, progress: Progress, limit_s: float) -> None:
        """Stop when there is no progress for `limit_s`."""
        progress.mark()
        self._limit_s, self._progress = limit_s, progress

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
