"""What a safetensors file holds, without loading any of it: https://github.com/huggingface/safetensors#format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

METADATA = "__metadata__"


def tensors_in(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the `dtype`, `shape` and `data_offsets` of each tensor by its name, and the place in the file from which
    the offsets count. Raises OSError, ValueError for what is no such file."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > os.fstat(file.fileno()).st_size:
            raise ValueError(f"{path}: is no safetensors file")
        header = json.loads(file.read(length))
        header.pop(METADATA, None)
        return header, file.tell()
