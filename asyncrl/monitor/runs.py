"""Which runs a folder holds, and what each is doing."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.run.metrics import read_metrics
from asyncrl.run.totals import finished_summary

ALIVE_S = 20.0
"""A run whose launcher lives writes something at least this often."""
_WRITTEN_WHILE_ALIVE = ("lives.json", "ledger.sqlite", "ledger.sqlite-wal", "metrics.jsonl", "activity.jsonl")


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in a list. Rewards are means over the trajectories of a step."""

    name: str
    state: str
    """"running", "finished" or "stopped"."""
    step: int
    num_steps: int
    reward: float | None
    success_before: float | None
    success_after: float | None
    """Held out; the reward where the environment gives no verdict."""
    environment: str
    preset: str
    changed: float
    """Seconds since 1970 at which the run last wrote."""


def find_runs(place: Path) -> dict[str, Path]:
    """Return the runs by name: `place` itself if it is a run folder, otherwise those in it, newest last.

    A further policy of a run is one, too: `RUN/policies/NAME`. Raises `ConfigError` where there is none.
    """
    if not place.is_dir():
        raise ConfigError(
            f"{place}: no such folder; give a run's folder or one that holds runs, such as runs"
        )
    single = (place / "config.json").is_file()
    folders = [place] if single else sorted((p.parent for p in place.glob("*/config.json")), key=_changed)
    found = {}
    for folder in folders:
        found[folder.resolve().name] = folder
        for policy in sorted(folder.glob("policies/*/config.json")):
            found[f"{folder.resolve().name}/policies/{policy.parent.name}"] = policy.parent
    if not found:
        raise ConfigError(f"{place}: holds no run; `asyncrl train RECIPE` makes one")
    return found


def run_line(name: str, folder: Path) -> RunLine:
    """Return what a list of runs shows of one."""
    config, steps = read_config(folder), read_metrics(folder)
    summary = read_json(folder / "summary.json") or {}
    before = summary.get("eval_before") or read_json(folder / "eval_before.json") or {}
    after = summary.get("eval_after") or {}
    return RunLine(
        name=name,
        state=state_of(folder, config),
        step=steps[-1]["step"] if steps else 0,
        num_steps=config["train"]["num_steps"],
        reward=steps[-1].get("reward/mean") if steps else None,
        success_before=before.get("mean"),
        success_after=after.get("mean"),
        environment=config["env"]["name"],
        preset=str(config["algo"].get("preset", "")),
        changed=_changed(folder),
    )


def state_of(folder: Path, config: dict[str, Any]) -> str:
    """Return "finished", "running" or "stopped".

    The run's lock is not asked: whoever tries it could make a starting run believe that another one holds it.
    """
    if finished_summary(folder, config["train"]["num_steps"]) is not None:
        return "finished"
    run = folder.parent.parent if folder.parent.name == "policies" else folder
    return "running" if time.time() - _changed(run) < ALIVE_S else "stopped"


def read_config(folder: Path) -> dict[str, Any]:
    """Return a run's configuration as it was written, which may be of an earlier version of asyncrl."""
    config: dict[str, Any] = {"train": {}, "env": {}, "algo": {}, "model": {}}
    config |= read_json(folder / "config.json") or {}
    config["train"] = {"num_steps": 0} | config["train"]
    config["env"] = {"name": ""} | config["env"]
    return config


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None where there is none or another process is replacing it."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _changed(folder: Path) -> float:
    times = []
    for name in (*_WRITTEN_WHILE_ALIVE, "config.json"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
