"""What a run has done over all its lives: one from each start or resume of `asyncrl train` to its end or death.

The trainer's totals travel with its checkpoints; how long the run took is known to the launcher alone, which keeps it
in `lives.json` every few seconds, so that one that is killed loses no more.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from asyncrl.run.folder import RunFolder

FILE = "lives.json"
ENDED = "trainer.json"
"""Written by a trainer that has come to its end."""


class Lives:
    """Adds this life's times to those of the lives before. Times in seconds."""

    def __init__(self, folder: RunFolder, resume: bool) -> None:
        self.folder = folder
        self.before = _read(folder.path) if resume else _nothing()
        self._start = time.monotonic()
        self._train_start: float | None = None
        self._train_s = 0.0
        self._busy_s = 0.0
        self._seen: dict[str, float] = {}
        self._restarts: dict[str, int] = {}

    def train(self) -> None:
        """Training begins."""
        self._train_start = time.monotonic()

    def trained(self) -> None:
        """Training has ended."""
        if self._train_start is not None:
            self._train_s, self._train_start = self._train_s + time.monotonic() - self._train_start, None

    def saw_busy(self, worker: str, engine_busy_s: float) -> None:
        """Take in how long a worker has seen engines busy; one that was started again counts from nothing."""
        last = self._seen.get(worker)
        if last is not None:
            self._busy_s += engine_busy_s - last if engine_busy_s >= last else engine_busy_s
        self._seen[worker] = engine_busy_s

    def saw_restarts(self, restarts: dict[str, int]) -> None:
        """Take in how often each process was started again in this life."""
        self._restarts = restarts

    def totals(self) -> dict[str, Any]:
        """Return what this life and those before it come to."""
        now, before = time.monotonic(), self.before
        train_s = self._train_s + (now - self._train_start if self._train_start is not None else 0.0)
        return {
            "lives": before["lives"] + 1,
            "wall_s": before["wall_s"] + now - self._start,
            "train_wall_s": before["train_wall_s"] + train_s,
            "engine_busy_s": before["engine_busy_s"] + self._busy_s,
            "restarts": dict(Counter(before["restarts"]) + Counter(self._restarts)),
        }

    def save(self) -> None:
        """Keep the totals. Raises `ConfigError` on a full or read-only disk."""
        self.folder.write_json(FILE, self.totals())


def finished(run: Path, num_steps: int) -> dict[str, Any] | None:
    """Return the summary of a run that has nothing left to do for `num_steps` steps, else None.

    `summary["plan_ended"]` says that it ended before, with the last of its tasks.
    """
    try:
        ended, summary = (json.loads((run / name).read_text()) for name in (ENDED, "summary.json"))
        wanted = json.loads((run / "config.json").read_text())["train"]["num_steps"]
    except (OSError, ValueError):
        return None
    if summary["steps"] != ended["steps"]:
        # Of a life before: this one ended its training, but not the evaluation after it.
        return None
    plan_ended = ended["version"] < wanted
    return summary | {"plan_ended": plan_ended} if plan_ended or ended["version"] >= num_steps else None


def begin(run: Path) -> None:
    """Mark a run as going on again."""
    (run / ENDED).unlink(missing_ok=True)


def _read(run: Path) -> dict[str, Any]:
    try:
        return _nothing() | json.loads((run / FILE).read_text())
    except (OSError, ValueError):
        return _nothing()


def _nothing() -> dict[str, Any]:
    return {"lives": 0, "wall_s": 0.0, "train_wall_s": 0.0, "engine_busy_s": 0.0, "restarts": {}}
