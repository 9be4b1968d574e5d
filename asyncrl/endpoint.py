"""Small files through which the processes of a run find each other.

In one a service says where it serves: written whole, read by whoever started it. Another says it to a process that was
started before those it will call. A third asks a trainer to stop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import DeadlineError
from asyncrl.jsonfile import write_json

POLL_S = 0.05


def announce(ready_file: Path, url: str, pid: int) -> None:
    """Write `{"url", "pid"}`. Readers see all of it or no file."""
    write_json(ready_file, {"url": url, "pid": pid})


def announced_url(ready_file: Path) -> str:
    """Return the address, or "" while there is none; a service that ends takes its file away at any moment."""
    try:
        return str(json.loads(ready_file.read_text())["url"])
    except FileNotFoundError:
        return ""


def tell_addresses(file: Path, urls: Sequence[str]) -> None:
    """Write the addresses for whom `awaited_addresses` waits."""
    write_json(file, list(urls))


def stop_file(folder: Path) -> Path:
    """Return the file whose presence asks the trainer of a run or policy folder to end with a checkpoint."""
    return folder / "endpoints" / "trainer.stop"


def awaited_addresses(words: Sequence[str], timeout_s: float) -> list[str]:
    """Return addresses that are given as they are, or as one "@FILE", which is waited for.

    Raises `DeadlineError` when there is no such file within `timeout_s`.
    """
    if not (len(words) == 1 and words[0].startswith("@")):
        return list(words)
    file, deadline = Path(words[0][1:]), time.monotonic() + timeout_s
    while not file.exists():
        if time.monotonic() > deadline:
            raise DeadlineError(f"nobody wrote addresses into {file} within {timeout_s:g} s")
        time.sleep(POLL_S)
    return [str(url) for url in json.loads(file.read_text())]
