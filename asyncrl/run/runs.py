"""Which runs a folder holds, and what each is doing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncrl.clock import age_s
from asyncrl.errors import ConfigError
from asyncrl.jsonfile import read_json
from asyncrl.run.evaluations import evaluations
from asyncrl.run.json_lines import last_record
from asyncrl.run.totals import finished_summary

ALIVE_S = 20.0
"""A run whose launcher lives writes something at least this often."""
_WRITTEN_WHILE_ALIVE = ("lives.json", "ledger.sqlite", "ledger.sqlite-wal", "metrics.jsonl", "activity.jsonl")
_LINE_FILES = (
    "config.json",
    "metrics.jsonl",
    "evals.jsonl",
    "eval_before.json",
    "summary.json",
    "trainer.json",
)
_Signature = tuple[tuple[int, int], ...]


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
            f"{place}: no such folder in {Path.cwd()}; start where your runs are, or give a run's folder or one that "
            "holds runs; `asyncrl train RECIPE` makes the first one"
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


def run_folder(folder: Path, command: str) -> Path:
    """Return the absolute folder of one run. Raises `ConfigError` for what is none, naming the runs in it."""
    if not (folder / "config.json").is_file():
        found = ", ".join(find_runs(folder))
        raise ConfigError(f"{command} {folder}: has no config.json; give one of its runs: {found}")
    return folder.resolve()


def run_line(name: str, folder: Path) -> RunLine:
    """Return what a list of runs shows of one."""
    return _at_this_moment(_line_of_files(name, folder), folder)


class RunLines:
    """The lines of a list that is asked for again and again. Files of a run that stayed as they were are not read
    again. Threads may share it."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[_Signature, RunLine]] = {}

    def line(self, name: str, folder: Path) -> RunLine:
        """Return what `run_line` does."""
        signature = _signature(folder)
        kept, line = self._kept.get(folder, (None, None))
        if line is None or kept != signature:
            line = _line_of_files(name, folder)
            self._kept[folder] = signature, line
        return _at_this_moment(line, folder)


def _signature(folder: Path) -> _Signature:
    """Return size in bytes and time of modification in nanoseconds of the files that a line is made of."""
    found = []
    for name in _LINE_FILES:
        try:
            stat = (folder / name).stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _line_of_files(name: str, folder: Path) -> RunLine:
    """Return the line of a run that writes nothing at this moment."""
    config, newest = read_config(folder), last_record(folder / "metrics.jsonl") or {}
    held_out = {evaluation["when"]: evaluation["mean"] for evaluation in evaluations(folder)}
    return RunLine(
        name=name,
        state="finished" if finished_summary(folder, config["train"]["num_steps"]) is not None else "stopped",
        step=newest.get("step", 0),
        num_steps=config["train"]["num_steps"],
        reward=newest.get("reward/mean"),
        success_before=held_out.get("before"),
        success_after=held_out.get("after"),
        environment=config["env"]["name"],
        preset=str(config["algo"].get("preset", "")),
        changed=0.0,
    )


def _at_this_moment(line: RunLine, folder: Path) -> RunLine:
    state = "running" if line.state != "finished" and _writes(folder) else line.state
    return replace(line, state=state, changed=_changed(folder))


def state_of(folder: Path, config: dict[str, Any]) -> str:
    """Return "finished", "running" or "stopped".

    The run's lock is not asked: whoever tries it could make a starting run believe that another one holds it.
    """
    if finished_summary(folder, config["train"]["num_steps"]) is not None:
        return "finished"
    return "running" if _writes(folder) else "stopped"


def _writes(folder: Path) -> bool:
    run = folder.parent.parent if folder.parent.name == "policies" else folder
    return abs(age_s(_changed(run))) < ALIVE_S


def read_config(folder: Path) -> dict[str, Any]:
    """Return a run's configuration as it was written, of which the values are not checked."""
    config = read_json(folder / "config.json") or {}
    for section in ("train", "env", "algo", "model"):
        # Any folder may hold a file of this name.
        if not isinstance(config.get(section), dict):
            config[section] = {}
    config["train"] = {"num_steps": 0} | config["train"]
    config["env"] = {"name": ""} | config["env"]
    return config


def _changed(folder: Path) -> float:
    times = []
    for name in (*_WRITTEN_WHILE_ALIVE, "config.json"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
