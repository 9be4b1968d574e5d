"""Where the trainer writes its metrics: metrics.jsonl, which `asyncrl.run.metrics` reads, and TensorBoard."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class MetricsLog:
    """Appends one JSON object a step and mirrors numbers to TensorBoard."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        torn = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")
        self._file = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        if torn:
            # A trainer that was killed within a line must not take the next one with it.
            self._file.write("\n")
        self._board = SummaryWriter(str(Path(folder) / "tensorboard"))

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Record one step; non-numbers go to the JSON lines only."""
        self._file.write(json.dumps({"step": step, "time": time.time(), **metrics}) + "\n")
        for name, value in metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._board.close()
