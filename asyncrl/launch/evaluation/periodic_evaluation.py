"""Periodic held-out evaluation during training: every Nth version, on an engine of its own.

The trainer writes a checkpoint at those versions. A separate process (`asyncrl eval`) serves it and plays the tasks;
neither the trainer nor the engines wait for it. One evaluation runs at a time; of the versions that come meanwhile only
the newest is evaluated. Results are lines of `evals.jsonl`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.launch.processes.process_group import ManagedProcess, ProcessGroup, generation_nice
from asyncrl.run.checkpoints import STATE, complete_checkpoints
from asyncrl.textfile import parse_lines

log = logging.getLogger("asyncrl.launch")

RESULTS = "evals.jsonl"
TICK_S = 0.25


class PeriodicEvaluation:
    """Starts and collects the evaluations of a run. Call `tick` often, and `finish` before processes are stopped."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        process_group: ProcessGroup,
        env: dict[str, str] | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.process_group = process_group
        self.env = env or {}
        """Variables of its processes, which say what GPUs they have."""
        self.results = read_evals(folder)
        self._last = max((int(r["version"]) for r in self.results), default=0)
        self._process: ManagedProcess | None = None
        self._started = 0.0

    def tick(self) -> dict[str, Any] | None:
        """Collect an evaluation that has ended and start the next; return the record of the one that ended."""
        if not self.config.eval.every:
            return None
        ended = self._collect()
        if self._process is None:
            self._start()
        return ended

    async def finish(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait at most `timeout_s` for the running evaluation; return its record."""
        deadline = time.monotonic() + timeout_s
        while self._process is not None and time.monotonic() < deadline:
            if (ended := self._collect()) is not None:
                return ended
            await asyncio.sleep(TICK_S)
        if self._process is not None:
            self._record({"error": f"did not end within {timeout_s:g} s after training"})
        return None

    def _due(self) -> list[tuple[int, Path]]:
        """Return the versions that are to be evaluated, newest first, and their checkpoints."""
        return [
            (version, path)
            for version, path in complete_checkpoints(self.folder / "checkpoints")
            if version % self.config.eval.every == 0 and self._last < version < self.config.train.num_steps
        ]

    def _start(self) -> None:
        if not (due := self._due()):
            return
        self._last, path = due[0]
        model = self._scratch / "model"
        try:
            shutil.rmtree(self._scratch, ignore_errors=True)
            pin_policy(path, model)
        except OSError as error:
            self._record({"error": f"checkpoint {path}: {error}"})
            return
        argv = [
            *(
                "eval",
                str(model),
                "--env",
                self.config.env.name,
                "--recipe",
                str(self.folder / "config.json"),
            ),
            *("--tasks", str(self.config.eval.tasks)),
            *("--out", str(self._scratch / "result.json")),
        ]
        self._started = time.monotonic()
        self._process = self.process_group.start("eval", argv, self.env, ready=False, nice=generation_nice())

    def _collect(self) -> dict[str, Any] | None:
        process = self._process
        if process is None or process.alive():
            return None
        try:
            found = json.loads((self._scratch / "result.json").read_text())
        except (OSError, ValueError):
            found = {"error": f"asyncrl eval {process.ending()}; see {process.log}"}
        return self._record(found)

    def _record(self, found: dict[str, Any]) -> dict[str, Any]:
        if self._process is not None:
            self.process_group.stop([self._process])
            self._process = None
        shutil.rmtree(self._scratch, ignore_errors=True)
        if "error" in found:
            log.warning("evaluation of version %d: %s", self._last, found["error"])
        return self.record(self._last, time.monotonic() - self._started, found)

    def record(self, version: int, wall_s: float, found: dict[str, Any]) -> dict[str, Any]:
        """Add what was found of a version to the run's results."""
        record = {"version": version, "wall_s": round(wall_s, 2), **found}
        with open(self.folder / RESULTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.results.append(record)
        return record

    @property
    def _scratch(self) -> Path:
        return self.folder / "evaluating"


def pin_policy(checkpoint: Path, folder: Path) -> None:
    """Link the files of a checkpoint's policy, so that they stay when the trainer removes the checkpoint."""
    shutil.copytree(checkpoint, folder, copy_function=os.link, ignore=shutil.ignore_patterns(STATE))


def read_evals(folder: Path) -> list[dict[str, Any]]:
    """Return the evaluations a run has recorded."""
    path = folder / RESULTS
    if not path.exists():
        return []
    return parse_lines(path.read_bytes())
