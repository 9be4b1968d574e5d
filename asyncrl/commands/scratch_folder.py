"""A folder for what a command needs only while it runs."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import AsyncRLError


@contextmanager
def scratch_folder(command: str, of_logs: str = "logs") -> Iterator[Path]:
    """Make a folder and remove it at the end. After an `AsyncRLError`, whose message may refer to a log, it stays and
    its logs are named."""
    folder = Path(tempfile.mkdtemp(prefix=f"asyncrl-{command}-"))
    try:
        yield folder
    except AsyncRLError:
        print(f"{of_logs}: {folder / 'logs'}", file=sys.stderr)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
