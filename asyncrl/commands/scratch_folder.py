"""A folder for what a command needs only while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl import scratch
from asyncrl.errors import AsyncRLError


@contextmanager
def scratch_folder(command: str, of_logs: str = "logs") -> Iterator[Path]:
    """Make a folder and remove it at the end. After an `AsyncRLError`, whose message may refer to a log, it stays and
    its logs are named, if there are any: an error may come before a process has been started."""
    with scratch.scratch_folder(command) as folder:
        try:
            yield folder
        except AsyncRLError:
            logs = folder / "logs"
            if logs.is_dir() and any(logs.iterdir()):
                scratch.keep(folder)
                print(f"{of_logs}: {logs}", file=sys.stderr)
            raise
