"""How well curricula predicted success: a table and a figure from the records of a study's runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.extensions.curriculum.lease_hook import Calibration
from asyncrl.extensions.study.study_file import Study, StudyRun

Made = list[tuple[StudyRun, dict[str, Any]]]
"""Runs with their records."""
LEAST_GROUPS = 5
"""The fewest groups of a tenth of predictions that the figure shows."""


def calibration_table(study: Study, made: Made, condition: str) -> str:
    """Return a Markdown table of how each method of a condition predicted; "" where none did.

    Groups are pooled over seeds. `constant` is the squared error of who knows the mean success of them all and nothing
    else: a prediction is worth something below it.
    """
    found = _pooled(study, made, condition)
    if not found:
        return ""
    lines = [
        "| method | groups | mean predicted | mean realised | Brier score | of a constant | calibration error |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, pairs in found.items():
        predicted, realised = zip(*pairs, strict=True)
        summary = _calibration(pairs).summary()
        numbers = (
            statistics.fmean(predicted), statistics.fmean(realised), summary["brier"],
            statistics.pvariance(realised), summary["calibration_error"],
        )  # fmt: skip
        cells = " | ".join(f"{number:.3f}" for number in numbers)
        lines.append(f"| `{method}` | {len(pairs)} | {cells} |")
    return "\n".join(lines)


def reliability(pairs: Sequence[Sequence[float]]) -> list[tuple[int, float, float]]:
    """Return groups, mean predicted and mean realised success of each tenth of predictions that has any."""
    return [
        (int(groups), predicted / groups, realised / groups)
        for groups, predicted, realised in _calibration(pairs).bins
        if groups
    ]


def draw_calibration(study: Study, made: Made, path: Path) -> bool:
    """Draw realised over predicted success, a row a condition; False, and no figure, where nothing was predicted."""
    conditions = [one for one in study.conditions if _pooled(study, made, one)]
    if not conditions:
        return False
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(conditions), 1, figsize=(6, 5 * len(conditions)), squeeze=False, layout="constrained"
    )
    for axis, condition in zip(axes[:, 0], conditions, strict=True):
        axis.plot([0, 1], [0, 1], color="gray", linestyle="--", linewidth=1)
        for method, pairs in _pooled(study, made, condition).items():
            shown = [one for one in reliability(pairs) if one[0] >= LEAST_GROUPS]
            sizes = [groups for groups, _, _ in shown]
            x, y = [one[1] for one in shown], [one[2] for one in shown]
            (line,) = axis.plot(x, y, linewidth=1, label=method)
            axis.scatter(x, y, s=sizes, color=line.get_color(), alpha=0.5)
        axis.set_xlabel("predicted success")
        axis.set_ylabel("realised success" + (f"\n{condition}" if condition else ""))
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _pooled(study: Study, made: Made, condition: str) -> Mapping[str, list[list[float]]]:
    """Return the predictions of each method that made any, over all seeds."""
    found: dict[str, list[list[float]]] = {}
    for method in study.methods:
        for run, record in made:
            if (run.method, run.condition) == (method, condition) and record.get("predictions"):
                found.setdefault(method, []).extend(record["predictions"])
    return found


def _calibration(pairs: Sequence[Sequence[float]]) -> Calibration:
    calibration = Calibration()
    for predicted, realised in pairs:
        calibration.add(predicted, realised)
    return calibration
