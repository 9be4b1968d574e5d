"""A run's times over all its launches: each start or resume of `asyncrl train` is one.

The trainer's totals are part of its checkpoints. How long the run took only the launcher knows. It saves that in
`lives.json` every few seconds, so that a launcher that is killed loses no more than these.
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
"""Written by a trainer at its end."""


class RunTotals:
    """Adds the times of this launch to those of earlier ones. Times in seconds."""

    def __init__(self, folder: RunFolder, resume: bool) -> None:
        self.folder = folder
        self.earlier = _read(folder.path) if resume else _zero()
        self._start = time.monotonic()
        self._train_start: float | None = None
        self._train_s = 0.0
        self._busy_s = 0.0
        self._engine_s = 0.0
        self._engines, self._engines_since = 0, 0.0
        self._seen: dict[str, float] = {}
        self._restarts: dict[str, int] = {}

    def training_started(self, engines: int = 0) -> None:
        """Start counting the time of training, and of the main policy's engines, of which there are so many."""
        self._train_start = self._engines_since = time.monotonic()
        self._engines = engines

    def training_ended(self) -> None:
        """Stop counting the time of training."""
        self.record_engines(0)
        if self._train_start is not None:
            self._train_s, self._train_start = self._train_s + time.monotonic() - self._train_start, None

    def record_engines(self, engines: int) -> None:
        """Record how many engines the main policy has from now on."""
        now = time.monotonic()
        self._engine_s = self._engine_s_at(now)
        self._engines, self._engines_since = engines, now

    def _engine_s_at(self, now: float) -> float:
        """Return the time of training until now, summed over the engines."""
        if self._train_start is None:
            return self._engine_s
        return self._engine_s + self._engines * (now - self._engines_since)

    def mean_engines(self) -> float:
        """Return how many engines the main policy had on average while it trained."""
        totals = self.totals()
        return float(totals["engine_s"]) / max(1e-9, totals["train_wall_s"])

    def record_engine_busy(self, worker: str, engine_busy_s: float) -> None:
        """Record for how long a worker has seen engines busy. A worker that was restarted counts from zero."""
        last = self._seen.get(worker)
        if last is not None:
            self._busy_s += engine_busy_s - last if engine_busy_s >= last else engine_busy_s
        self._seen[worker] = engine_busy_s

    def record_restarts(self, restarts: dict[str, int]) -> None:
        """Record how often each process was restarted in this launch."""
        self._restarts = restarts

    def totals(self) -> dict[str, Any]:
        """Return the totals of this launch and all earlier ones."""
        now, earlier = time.monotonic(), self.earlier
        train_s = self._train_s + (now - self._train_start if self._train_start is not None else 0.0)
        return {
            "lives": earlier["lives"] + 1,
            "wall_s": earlier["wall_s"] + now - self._start,
            "train_wall_s": earlier["train_wall_s"] + train_s,
            "engine_s": earlier["engine_s"] + self._engine_s_at(now),
            "engine_busy_s": earlier["engine_busy_s"] + self._busy_s,
            "restarts": dict(Counter(earlier["restarts"]) + Counter(self._restarts)),
        }

    def save(self) -> None:
        """Write the totals. Raises `ConfigError` on a full or read-only disk."""
        self.folder.write_json(FILE, self.totals())


def finished_summary(run: Path, num_steps: int) -> dict[str, Any] | None:
    """Return the summary of a run that has completed `num_steps` steps, else None.

    `summary["plan_ended"]` is true if it ended earlier because it ran out of tasks.
    """
    try:
        ended, summary = (json.loads((run / name).read_text()) for name in (ENDED, "summary.json"))
        wanted = json.loads((run / "config.json").read_text())["train"]["num_steps"]
    except (OSError, ValueError):
        return None
    if summary["steps"] != ended["steps"]:
        # The summary is of an earlier launch: this one ended its training, but not the evaluation after it.
        return None
    plan_ended = ended["version"] < wanted
    return summary | {"plan_ended": plan_ended} if plan_ended or ended["version"] >= num_steps else None


def mark_unfinished(run: Path) -> None:
    """Mark a run as running again."""
    (run / ENDED).unlink(missing_ok=True)


def _read(run: Path) -> dict[str, Any]:
    try:
        return _zero() | json.loads((run / FILE).read_text())
    except (OSError, ValueError):
        return _zero()


def _zero() -> dict[str, Any]:
    return {
        "lives": 0,
        "wall_s": 0.0,
        "train_wall_s": 0.0,
        "engine_s": 0.0,
        "engine_busy_s": 0.0,
        "restarts": {},
    }
