"""The small file in which a service says where it serves: written whole, read by whoever started the service."""

from __future__ import annotations

import json
import os
from pathlib import Path


def announce(ready_file: Path, url: str, pid: int) -> None:
    """Write `{"url", "pid"}`. Readers see all of it or no file."""
    temporary = ready_file.with_name(f".{ready_file.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"url": url, "pid": pid}))
    temporary.replace(ready_file)


def announced_url(ready_file: Path) -> str:
    """Return the address, or "" while there is none; a service that ends takes its file away at any moment."""
    try:
        return str(json.loads(ready_file.read_text())["url"])
    except FileNotFoundError:
        return ""
