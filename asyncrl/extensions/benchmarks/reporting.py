"""The reports of an evaluation by samples, and what the command prints of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl import __version__
from asyncrl.extensions.benchmarks.report import html_report, markdown_report
from asyncrl.extensions.benchmarks.results import evaluate_samples, without
from asyncrl.extensions.benchmarks.tables import Cell, difference
from asyncrl.jsonfile import write_json
from asyncrl.launch.evaluation.fail_under import any_under


def report(
    folder: Path,
    about: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[str],
    asked: Sequence[str],
    fail_under: float | None = None,
    leakage: Mapping[str, Any] | None = None,
) -> int:
    """Write the reports of an evaluation, print its scores, and return the exit code.

    about: suite, version, description, samples, temperature and number of tasks. checkpoints: all that the evaluation
    has; asked: those of this command, of which none may score below `fail_under`. leakage: what `look_for` has found.
    """
    result = _write(folder, about, rows, checkpoints, leakage)
    for name, one in result["checkpoints"].items():
        failed = f", failed {one['failed']}" if one["failed"] else ""
        print(f"{name}: score {Cell(one['score']).text()} over {about['tasks']} tasks{failed}")
    for one in result["comparisons"]:
        if one["part"] is None:
            print(
                f"{one['second']}: {difference(one).text()} against {one['first']}, p = {one['p_holm']:.4f}"
            )
    if leakage is not None:
        _say_leakage(leakage)
    print(f"report: {folder / 'report.html'}")
    if fail_under is None:
        return 0
    scores = {name: result["checkpoints"][name]["score"] for name in asked}
    means = {name: None if score is None else score["mean"] for name, score in scores.items()}
    return int(any_under(means, fail_under))


def _write(
    folder: Path,
    about: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[str],
    leakage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Write `results.json`, `report.md` and `report.html`; return the results."""
    result = {
        **about,
        "asyncrl": __version__,
        "complete": len(rows) == len(checkpoints) * about["tasks"] * about["samples"],
        **evaluate_samples(rows, checkpoints, about["samples"]),
    }
    if leakage is not None:
        sources = [one for sources in leakage["parts"].values() for one in sources.values()]
        overlapping = {listed["task"] for one in sources for listed in one["overlapping"]}
        scores = without(rows, overlapping) if overlapping else {}
        result["contamination"] = {**leakage, "scores_without": scores}
    write_json(folder / "results.json", json.loads(json.dumps(result)), indent=2)
    (folder / "report.md").write_text(markdown_report(result), encoding="utf-8")
    (folder / "report.html").write_text(html_report(result, rows), encoding="utf-8")
    return result


def _say_leakage(leakage: Mapping[str, Any]) -> None:
    for part, sources in leakage["parts"].items():
        for source, one in sources.items():
            if one["overlapping"]:
                print(
                    f"{part}: {len(one['overlapping'])} of {one['tasks']} tasks overlap with the training data "
                    f"{source}; the report has the scores without them"
                )
    for note in leakage["notes"]:
        print(f"note: {note}", file=sys.stderr)
