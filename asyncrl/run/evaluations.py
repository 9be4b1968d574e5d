"""The held-out evaluations of a run, before, during and after its training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.jsonfile import read_json
from asyncrl.run.json_lines import JsonLines


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
