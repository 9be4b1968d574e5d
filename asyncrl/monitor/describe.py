"""One run as a page shows it, but for its steps and trajectories; and how the settings of several differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl.jsonfile import read_json
from asyncrl.monitor.evaluations import evaluations
from asyncrl.monitor.ledger_view import read_ledger
from asyncrl.monitor.runs import read_config, run_line
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.run.json_lines import JsonLines


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
