"""`asyncrl compare FIRST OTHER...`"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.jsonfile import write_json


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "compare",
        help="say whether checkpoints differ, from evaluations on the same tasks",
        description="Compare evaluations with the first one, task by task: difference with a 95%% interval (BCa "
        "bootstrap over tasks), p-value (paired permutation test, by Holm's method where there are several), and the "
        "difference that so many tasks could have shown.",
    )
    parser.add_argument(
        "rows", nargs="+", type=Path, metavar="ROWS", help="files of `asyncrl eval --rows`, two or more"
    )
    parser.add_argument(
        "--metric",
        choices=("success", "reward"),
        help="success unless given, or reward where no episode has a verdict",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.evaluation.statistics import clustered_mean
    from asyncrl.extensions.benchmarks.comparison import compare, holm
    from asyncrl.extensions.benchmarks.episode_values import metric_of, values_by_task

    if len(args.rows) < 2:
        raise ConfigError("compare: needs two or more files of rows")
    metric = args.metric or metric_of(args.rows)
    first, *others = [values_by_task(path, metric) for path in args.rows]
    try:
        found = [compare(first, other) for other in others]
    except ValueError as error:
        raise ConfigError(f"compare: {error}") from error
    adjusted = holm([one.p_value for one in found])
    width = max(len(str(path)) for path in args.rows)
    for path, values in zip(args.rows, (first, *others), strict=True):
        mean = clustered_mean(values)
        print(
            f"{path!s:{width}s}  {metric} {mean.mean:.3f}{_interval(mean.ci_low, mean.ci_high)}, "
            f"{mean.tasks} tasks"
        )
    for path, one, p in zip(args.rows[1:], found, adjusted, strict=True):
        print(
            f"{path!s:{width}s}  {one.difference:+.3f}{_interval(one.ci_low, one.ci_high, '+')} against "
            f"{args.rows[0]}, p = {p:.4f}; better on {one.better}, worse on {one.worse} of {one.tasks} tasks; "
            f"{one.detectable:.3f} could be seen"
        )
    if args.json:
        found_rows = [
            {
                "first": str(args.rows[0]),
                "second": str(path),
                "metric": metric,
                "p_holm": p,
                **asdict(one),
            }
            for path, one, p in zip(args.rows[1:], found, adjusted, strict=True)
        ]
        write_json(args.json, found_rows, indent=2)
    return 0


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    return "" if low is None or high is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
