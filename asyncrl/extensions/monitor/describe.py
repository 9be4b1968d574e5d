"""One run as a page shows it, but for its steps and trajectories."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl.jsonfile import read_json
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.run.evaluations import evaluations
from asyncrl.run.json_lines import JsonLines
from asyncrl.run.ledger_view import read_ledger
from asyncrl.run.runs import read_config, run_line


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
