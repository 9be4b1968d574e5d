"""One run as a page shows it, but for its steps and trajectories; and how the settings of several differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.monitor.ledger_view import read_ledger
from asyncrl.monitor.runs import read_config, read_json, run_line
from asyncrl.monitor.steps import JsonLines
from asyncrl.run.checkpoints import complete_checkpoints

MAX_LOG_BYTES = 2**18
"""How much of a log's end is shown."""


def describe_run(name: str, folder: Path) -> dict[str, Any]:
    """Return the state, the settings, evaluations, failures, restarts, checkpoints and logs of a run."""
    return {
        **asdict(run_line(name, folder)),
        "config": read_config(folder),
        "summary": read_json(folder / "summary.json"),
        "evaluations": evaluations(folder),
        "ledger": read_ledger(folder),
        "restarts": JsonLines(folder / "restarts.jsonl").refresh(),
        "checkpoints": [
            {"version": version, "path": str(path)}
            for version, path in complete_checkpoints(folder / "checkpoints")
        ],
        "logs": [
            {"name": path.stem, "bytes": path.stat().st_size}
            for path in sorted((folder / "logs").glob("*.log"))
        ],
    }


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """Return the held-out evaluations in order: `version`, `mean`, `ci_low`, `ci_high`, `tasks`, `what`.

    `mean` is the success where the environment gives a verdict, and the reward otherwise.
    """
    summary = read_json(folder / "summary.json") or {}
    found = []
    if before := summary.get("eval_before") or read_json(folder / "eval_before.json"):
        found.append(_evaluation(0, "before", before))
    for record in JsonLines(folder / "evals.jsonl").refresh():
        if "error" not in record:
            found.append(_evaluation(record["version"], "during", record))
    if after := summary.get("eval_after"):
        found.append(_evaluation(summary["steps"], "after", after))
    return found


def read_log(folder: Path, name: str) -> str:
    """Return the end of a process's log. Raises `InputError` for a name that no log has."""
    path = next((path for path in (folder / "logs").glob("*.log") if path.stem == name), None)
    if path is None:
        raise InputError(f"no log {name[:64]!r}")
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - MAX_LOG_BYTES))
        return file.read().decode(errors="replace")


def differing_settings(configs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `{"key", "values"}` for each setting that is not the same in all runs; `values` by run."""
    flat = {run: _flat(config) for run, config in configs.items()}
    keys = sorted({key for settings in flat.values() for key in settings})
    rows: Iterator[dict[str, Any]] = (
        {"key": key, "values": {run: flat[run].get(key) for run in flat}} for key in keys
    )
    return [row for row in rows if len({repr(value) for value in row["values"].values()}) > 1]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {key: inner for name in value for key, inner in _flat(value[name], f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): value}


def _evaluation(version: int, when: str, result: Mapping[str, Any]) -> dict[str, Any]:
    mean, low, high = result["mean"], result.get("ci_low"), result.get("ci_high")
    what = "reward"
    if result.get("success") is not None:
        mean, what = result["success"], "success"
        low, high = result.get("success_ci") or (None, None)
    return {
        "version": version,
        "when": when,
        "what": what,
        "mean": mean,
        "ci_low": low,
        "ci_high": high,
        "tasks": result.get("tasks"),
        "failed": result.get("failed", {}),
    }
