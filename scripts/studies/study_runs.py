"""Many short training runs on one engine, for the studies: `study_presets.py` and `study_asynchrony.py`.

An engine takes longer to start than a run here takes to train, so the runs of one environment share one. Before each
run the engine gets the base model's weights back, as version 0. Buffer, environments, worker and trainer are new.
Every finished run is one line of the records file; a study that is restarted continues where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.config import load_config
from asyncrl.config_checks import check_objective
from asyncrl.errors import AsyncRLError
from asyncrl.launch.attached_run import AttachedRun, SharedEngine
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics

LAST_STEPS = 5
"""Steps at the end of a run over which its training reward is averaged."""


class Study:
    """Runs that leave one record each in a file of JSON lines."""

    def __init__(self, records: Path, keep: Path | None = None) -> None:
        self.records = records
        self.keep = keep
        self.done = {json.dumps(r["key"], sort_keys=True) for r in read_records(records)}

    @contextlib.contextmanager
    def engine(self, recipe: str, overrides: list[str]) -> Iterator[SharedEngine]:
        with tempfile.TemporaryDirectory(prefix="asyncrl-study-") as folder:
            shared = SharedEngine(load_config(recipe, overrides), Path(folder))
            try:
                yield shared
            finally:
                shared.stop()

    def has(self, key: dict[str, Any]) -> bool:
        return json.dumps(key, sort_keys=True) in self.done

    def run_missing(
        self,
        keys: Iterable[dict[str, Any]],
        recipe: str,
        common: list[str],
        own: Callable[[dict[str, Any]], list[str]],
    ) -> None:
        """Do the runs that have no record yet, on one engine. own: the overrides of a run beside the common ones."""
        self.records.parent.mkdir(parents=True, exist_ok=True)
        if missing := [key for key in keys if not self.has(key)]:
            with self.engine(recipe, common) as shared:
                for key in missing:
                    self.run(shared, key, recipe, [*common, *own(key)])

    def run(self, shared: SharedEngine, key: dict[str, Any], recipe: str, overrides: list[str]) -> None:
        """Do one run and append its record; a run that fails leaves its error as the record."""
        if self.has(key):
            return
        print(f"-- {key}", file=sys.stderr, flush=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="asyncrl-study-") as folder:
            path = Path(folder) / "run"
            try:
                config = load_config(recipe, [*overrides, f"run.folder={json.dumps(folder)}"])
                check_objective(config)
                shared.reset()
                with RunFolder(path) as run_folder:
                    summary = AttachedRun(config, run_folder, shared).run()
                record = {"key": key} | measure(path, summary)
                if self.keep is not None:
                    shutil.copytree(path / "checkpoints", self.keep, dirs_exist_ok=True)
            except AsyncRLError as error:
                record = {"key": key, "error": str(error)[:2000]}
        record["wall_s"] = round(time.monotonic() - start, 1)
        with open(self.records, "a") as file:
            file.write(json.dumps(record) + "\n")
        self.done.add(json.dumps(key, sort_keys=True))
        print(json.dumps(record)[:300], file=sys.stderr, flush=True)


def measure(path: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Return what a record keeps of a finished run. Rewards are held-out success rates; times in seconds."""
    steps = read_metrics(path)
    before, after = summary["eval_before"], summary["eval_after"]
    return {
        "before": before["mean"],
        "after": after["mean"],
        "after_ci": [after["ci_low"], after["ci_high"]],
        "tasks": after["tasks"],
        "steps": summary["steps"],
        "train_wall_s": round(summary["train_wall_s"], 2),
        "staleness_mean": round(summary["staleness"]["mean"], 3),
        "staleness_max": summary["staleness"]["max"],
        "skipped_steps": sum(bool(s.get("skipped")) for s in steps),
        "reward_curve": [round(s["reward/mean"], 4) for s in steps],
        "ess_sequence": mean_of(steps, "ess/sequence"),
        "ess_token": mean_of(steps, "ess/token"),
        "clip_fraction": mean_of(steps, "clip_fraction"),
        "grad_norm": mean_of(steps, "grad_norm"),
        "logprob_error": max((s.get("logprob_check/error", 0.0) for s in steps), default=0.0),
        "logprob_worst_token": max((s.get("logprob_check/worst_token", 0.0) for s in steps), default=0.0),
    }


def mean_of(steps: list[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a metric over the steps that report it, or None."""
    values = [s[name] for s in steps if isinstance(s.get(name), int | float)]
    return round(statistics.fmean(values), 5) if values else None


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a study; none before it has begun."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def write_page(path: Path, mark: str, text: str) -> str:
    """Put `text` between the page's `mark` comments; return what was written. Raises SystemExit without them."""
    begin, end = f"<!-- {mark} -->", f"<!-- end {mark} -->"
    page = path.read_text()
    if begin not in page or end not in page:
        raise SystemExit(f"{path}: has no {begin} ... {end}")
    head, tail = page[: page.index(begin) + len(begin)], page[page.index(end) :]
    path.write_text(f"{head}\n\n{text}\n{tail}")
    return text
