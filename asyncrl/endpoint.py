"""Small files through which the processes of a run find each other.

One holds the address of a service, written atomically and read by whoever started it. Another gives addresses to a
process that was started before the services it calls. A third asks a trainer to stop.
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
    """Write `{"url", "pid"}`. Readers see the whole file or none."""
    write_json(ready_file, {"url": url, "pid": pid})


def announced_url(ready_file: Path) -> str:
    """Return the address, or "" while there is none; a service that ends may remove its file at any moment."""
    try:
        return str(json.loads(ready_file.read_text())["url"])
    except FileNotFoundError:
        return ""


def write_addresses(file: Path, urls: Sequence[str]) -> None:
    """Write the addresses that `wait_for_addresses` waits for."""
    write_json(file, list(urls))


def stop_file(folder: Path) -> Path:
    """Return the file whose presence asks the trainer of a run or policy folder to save a checkpoint and end."""
    return folder / "endpoints" / "trainer.stop"


def wait_for_addresses(words: Sequence[str], timeout_s: float) -> list[str]:
    """Return the given addresses, or for one "@FILE" those that another process will write to FILE.

    Raises `DeadlineError` if the file does not appear within `timeout_s`.
    """
    if not (len(words) == 1 and words[0].startswith("@")):
        return list(words)
    file, deadline = Path(words[0][1:]), time.monotonic() + timeout_s
    while not file.exists():
        if time.monotonic() > deadline:
            raise DeadlineError(f"no addresses were written to {file} within {timeout_s:g} s")
        time.sleep(POLL_S)
    return [str(url) for url in json.loads(file.read_text())]
