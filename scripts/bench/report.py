"""What every benchmark leaves: its result on the console and, where asked for, in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_report(result: dict[str, Any], path: Path | None) -> None:
    """Print the result as JSON, and write it to `path` as well if there is one."""
    text = json.dumps(result, indent=2)
    print(text)
    if path:
        path.write_text(text + "\n")
