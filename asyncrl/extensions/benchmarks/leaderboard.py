"""A leaderboard: checkpoints by what they were evaluated on, from the folders of `asyncrl eval --suite` and `--on`.

A column is a suite, or one known data set. Evaluations in different folders share a column where suite, tasks and
sampling are the same, since only then their scores can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.budget_curve import Budget, Price, budget_curve, budget_table
from asyncrl.extensions.benchmarks.comparison import holm
from asyncrl.extensions.benchmarks.results import Row, evaluate_samples
from asyncrl.extensions.benchmarks.samples import FILE as SAMPLES
from asyncrl.extensions.benchmarks.samples import RECORD
from asyncrl.extensions.benchmarks.tables import Cell, Table, difference_cells
from asyncrl.jsonfile import read_json
from asyncrl.textfile import parse_lines

SHOWN_TASKS = 10
"""Tasks of each regression that are listed."""
BUDGETS = ("most_thinking", "least_thinking")
"""Keys of a suite that bound how long is thought."""
NO_BUDGET = Budget()
SURE = 0.05
"""The p-value, adjusted for all differences of the page, below which a loss is a regression."""


@dataclass(slots=True)
class Column:
    """What checkpoints were evaluated on, and their samples."""

    name: str
    folder: str
    samples: int
    """Episodes of a task."""
    tasks: int
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By checkpoint."""
    budget: Budget = NO_BUDGET
    """How long was thought."""
    family: str = ""
    """Shared by columns that differ in their budget alone."""
    on: str = ""
    """What they have in common by name."""

    def is_complete(self, checkpoint: str) -> bool:
        """Return whether a checkpoint has all its samples."""
        return len(self.rows[checkpoint]) >= self.tasks * self.samples


def read_columns(folder: Path) -> list[Column]:
    """Return the columns of all evaluations in a folder, at any depth. Raises `ConfigError` where there is none.

    A checkpoint that was evaluated twice on the same has its first samples. Two checkpoints of one name whose files or
    settings differ are told apart by the folders of their evaluations.
    """
    found: dict[str, Column] = {}
    names: dict[str, str] = {}
    for path in sorted(folder.rglob(RECORD)):
        record = read_json(path)
        if not isinstance(record, dict) or not {"suite", "tasks", "checkpoints"} <= record.keys():
            continue
        file = path.with_name(SAMPLES)
        rows = parse_lines(file.read_bytes().rpartition(b"\n")[0]) if file.is_file() else []
        labels = {
            name: _label(name, settings, str(path.parent), names)
            for name, settings in record["checkpoints"].items()
        }
        budget = Budget(*(record["suite"].get(key) for key in BUDGETS))
        without = {**record, "suite": {**record["suite"], **dict.fromkeys(BUDGETS)}}
        for (key, on, parts), (family, _, _) in zip(_columns(record), _columns(without), strict=True):
            tasks = sum(len(record["tasks"][part]) for part in parts)
            name = f"{on}, thinking {budget.text}" if budget.text else on
            new = Column(
                name, str(path.parent), record["suite"]["samples"], tasks, budget=budget, family=family, on=on
            )
            column = found.setdefault(key, new)
            for checkpoint, label in labels.items():
                mine = [row for row in rows if row["checkpoint"] == checkpoint and row["part"] in parts]
                if mine:
                    column.rows.setdefault(label, [{**row, "checkpoint": label} for row in mine])
    columns = [column for column in found.values() if column.rows]
    if not columns:
        raise ConfigError(
            f"{folder}: holds no evaluation with samples; `asyncrl eval CHECKPOINT --suite NAME` or --on SET writes "
            "one to evals/NAME, and the folder of a leaderboard is evals, or another with such folders"
        )
    repeated = Counter(column.name for column in columns)
    for column in columns:
        column.name += f" ({column.folder})" if repeated[column.name] > 1 else ""
    return columns


def leaderboard(
    columns: Sequence[Column], against: str = "", prices: Mapping[str, Price] | None = None
) -> dict[str, Any]:
    """Return the scores, the paired differences, the regressions and the curves over budgets of a leaderboard.

    against: the checkpoint that others are compared with; "" takes the one with the most columns, the first of several.
    prices: of the tokens of checkpoints. p-values are adjusted by Holm's method over all differences; a regression is a
    loss whose p-value is then below `SURE`. Raises `ConfigError` for a checkpoint that no column has.
    """
    checkpoints = evaluated(columns)
    of = Counter(name for column in columns for name in column.rows)
    against = against or max(checkpoints, key=lambda name: of[name])
    if against not in of:
        raise ConfigError(f"--against {against!r}: was not evaluated; allowed: {', '.join(checkpoints)}")
    scores: dict[str, dict[str, Any]] = {name: {} for name in checkpoints}
    differences: list[dict[str, Any]] = []
    for column in columns:
        ordered = sorted(column.rows, key=lambda name: name != against)
        rows = [row for name in ordered for row in column.rows[name]]
        result = evaluate_samples(rows, ordered, column.samples)
        for name, one in result["checkpoints"].items():
            kept = {key: one.get(key) for key in ("score", "counted", "failed", "tokens", "read_tokens")}
            scores[name][column.name] = {**kept, "complete": column.is_complete(name)}
        if ordered[0] == against:
            differences += [
                {"column": column.name, **one} for one in result["comparisons"] if one["part"] is None
            ]
    for one, p in zip(differences, holm([one["p_value"] for one in differences]), strict=True):
        one["p_holm"] = p
    # The surest losses come first, then the surest gains.
    differences.sort(key=lambda one: one["ci_high"])
    return {
        "against": against,
        "columns": [column.name for column in columns],
        "checkpoints": scores,
        "differences": differences,
        "regressions": [one for one in differences if one["difference"] < 0 and one["p_holm"] < SURE],
        "budgets": _budget_curves(columns, scores, prices or {}),
    }


def evaluated(columns: Sequence[Column]) -> list[str]:
    """Return the checkpoints of all columns."""
    return list(dict.fromkeys(name for column in columns for name in column.rows))


def _budget_curves(
    columns: Sequence[Column], scores: Mapping[str, Mapping[str, Any]], prices: Mapping[str, Price]
) -> list[dict[str, Any]]:
    """Return a curve for each checkpoint and what it was evaluated on with several budgets of thinking."""
    families: dict[str, list[Column]] = defaultdict(list)
    for column in columns:
        families[column.family].append(column)
    found = []
    for family in families.values():
        for checkpoint in evaluated(family):
            mine = [column for column in family if checkpoint in column.rows]
            measured = [(column.budget, scores[checkpoint][column.name]) for column in mine]
            if len(points := budget_curve(measured, prices.get(checkpoint))) > 1:
                found.append({"checkpoint": checkpoint, "on": mine[0].on, "points": points})
    return found


def leaderboard_tables(board: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a leaderboard, regressions first."""
    lost = [[one["second"], one["column"], *difference_cells(one)] for one in board["regressions"]]
    tasks = [
        [one["second"], one["column"], task["task"], f"{task['first']:.3f}", f"{task['second']:.3f}"]
        for one in board["regressions"]
        for task in one["regressions"][:SHOWN_TASKS]
    ]
    header = ("checkpoint", "on", "difference", "p (Holm)", "better / worse")
    return [
        one
        for one in (
            Table(
                "Regressions",
                f"Scores that are lower than those of {board['against']}: the p-value of the paired difference, "
                f"adjusted for all differences of this page, is below {SURE:g}.",
                header,
                lost,
            ),
            Table(
                "Tasks of the regressions",
                f"Those that lost most against {board['against']}, at most {SHOWN_TASKS} of each.",
                ("checkpoint", "on", "task", "before", "now"),
                tasks,
            ),
            Table(
                "Scores",
                "Share of successes, or the mean reward where nothing judges; means over tasks with 95 % intervals, "
                "clustered by task.",
                ("checkpoint", *board["columns"]),
                [[name, *_scores(one, board["columns"])] for name, one in board["checkpoints"].items()],
            ),
            Table(
                f"Differences from {board['against']}",
                "Paired by task, with a BCa bootstrap interval; p by the paired permutation test, adjusted by Holm's "
                "method over all of this table.",
                header,
                [[one["second"], one["column"], *difference_cells(one)] for one in board["differences"]],
            ),
            budget_table(board["budgets"]),
        )
        if one.rows
    ]


def _columns(record: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the key, the name and the parts of each column of an evaluation."""
    # A key that says nothing is as in evaluations that were made before there was such a key.
    suite = {key: value for key, value in record["suite"].items() if value is not None}
    tasks = record["tasks"]
    sampling = {key: value for key, value in suite.items() if key not in ("name", "parts", "description")}
    if all(part.get("set") for part in suite["parts"].values()):
        # A data set is the same column whatever others were played beside it, and wherever its file lay.
        for name, part in suite["parts"].items():
            if name not in tasks:
                # lm-eval says what its tasks are when it has played them.
                continue
            known = {key: part[key] for key in ("set", "env")}
            yield _digest([sampling, known, tasks[name]]), name, [name]
        return
    yield _digest([suite, tasks]), suite["name"], list(suite["parts"])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _label(name: str, settings: Any, folder: str, names: dict[str, str]) -> str:
    """Return what a checkpoint is called: its name, with the folder where another has that name already."""
    digest = _digest(settings)
    label = name if names.setdefault(name, digest) == digest else f"{name} ({folder})"
    names.setdefault(label, digest)
    return label


def _scores(scores: Mapping[str, Any], columns: Sequence[str]) -> Iterator[str | Cell]:
    for column in columns:
        one = scores.get(column)
        if one is None:
            yield "not evaluated"
        elif not one["complete"]:
            yield f"{Cell(one['score']).text()}, not complete"
        else:
            yield Cell(one["score"])
