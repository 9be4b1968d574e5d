"""JSON files that another process may read at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write a JSON file atomically: a reader sees the previous one, this one, or none. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.write_text(json.dumps(value, indent=indent) + "\n")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None where there is none or another process is replacing it."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
