"""`asyncrl eval --suite NAME CHECKPOINT...` and `--on SET,...`: plays what is missing, then writes the reports."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl import __version__
from asyncrl.errors import AsyncRLError, ConfigError
from asyncrl.evaluation.report import html_report, markdown_report
from asyncrl.evaluation.results import evaluate_samples, without
from asyncrl.evaluation.samples import SampleFile
from asyncrl.evaluation.suite import Suite, check_digests, part_tasks
from asyncrl.evaluation.tables import Cell, difference
from asyncrl.evaluation.trained_on import look_for, training_data
from asyncrl.jsonfile import write_json
from asyncrl.launch.evaluation.suite import check_suite, open_evaluation, play_suite, suite_config

EVERY_S = 10.0
"""Between two lines of progress in a log; on a terminal one line is written anew."""


def run_suite(args: argparse.Namespace, suite: Suite) -> int:
    """Evaluate checkpoints on a suite. Raises `ConfigError`, `InputError` and what ends a run."""
    repeated = [name for name in args.checkpoint if args.checkpoint.count(name) > 1]
    if repeated:
        raise ConfigError(f"eval: {repeated[0]!r} is given twice")
    configs = {
        checkpoint: suite_config(suite, checkpoint, args.recipe, args.overrides)
        for checkpoint in args.checkpoint
    }
    tasks = {name: part_tasks(name, part) for name, part in suite.parts.items()}
    check_digests(suite, tasks)
    check_suite(suite, tasks, configs)
    training = training_data(args.checkpoint, args.trained_on)
    folder = args.out or Path("evals") / suite.name
    checkpoints = open_evaluation(folder, suite, tasks, configs)
    file = SampleFile(folder)
    num_tasks = sum(map(len, tasks.values()))
    try:
        for number, (checkpoint, config) in enumerate(configs.items(), 1):
            progress = _Progress(file, suite, checkpoint, num_tasks)
            work = folder / "work" / str(number)
            try:
                play_suite(suite, tasks, checkpoint, config, work, file, progress)
            except (AsyncRLError, KeyboardInterrupt) as error:
                error.add_note(f"logs of this evaluation: below {work}; the same command goes on with it")
                raise
            progress.end()
        result = {
            "suite": suite.name,
            "version": suite.version,
            "description": suite.description,
            "samples": suite.samples,
            "temperature": suite.temperature,
            "tasks": num_tasks,
        }
        return report(args, folder, result, file.rows, checkpoints, look_for(tasks, training))
    finally:
        file.close()


def report(
    args: argparse.Namespace,
    folder: Path,
    about: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[str],
    leakage: Mapping[str, Any] | None = None,
) -> int:
    """Write the reports of an evaluation, print its scores, and return the exit code.

    about: suite, version, description, samples, temperature and number of tasks. leakage: what `look_for` has found.
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
    if args.fail_under is None:
        return 0
    scores = {name: result["checkpoints"][name]["score"] for name in args.checkpoint}
    means = {name: None if score is None else score["mean"] for name, score in scores.items()}
    return int(any_under(means, args.fail_under))


def any_under(means: dict[str, float | None], limit: float) -> bool:
    """Whether a checkpoint's score is below `--fail-under`, or not known; says which ones are."""
    under = {name: mean for name, mean in means.items() if mean is None or mean < limit}
    for name, mean in under.items():
        found = "no sample counts" if mean is None else f"{mean:.3f}"
        print(f"{name}: {found}, below --fail-under {limit:g}", file=sys.stderr)
    return bool(under)


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


class _Progress:
    """Tells how far the samples of a checkpoint are."""

    def __init__(self, file: SampleFile, suite: Suite, checkpoint: str, num_tasks: int) -> None:
        self._file, self._checkpoint = file, checkpoint
        self._all = num_tasks * suite.samples
        self._terminal = sys.stderr.isatty()
        self._shown_s = time.monotonic()
        self._others = sum(row["checkpoint"] != checkpoint for row in file.rows)
        self._first: tuple[float, int] | None = None
        """When the first task had ended, and how many samples there were then: what comes before is the engine's
        start."""
        if before := self._there():
            print(f"{checkpoint}: {before} of {self._all} samples are there", file=sys.stderr)

    def __call__(self) -> None:
        now, there = time.monotonic(), self._there()
        self._first = self._first or (now, there)
        if self._terminal or now - self._shown_s >= EVERY_S:
            self._shown_s = now
            since, before = self._first
            line = f"{self._checkpoint}: {there} of {self._all} samples"
            if there > before:
                line += f", about {(self._all - there) * (now - since) / (there - before):.0f} s left"
            self._say(line)

    def end(self) -> None:
        self._say(f"{self._checkpoint}: {self._there()} of {self._all} samples")
        if self._terminal:
            print(file=sys.stderr)

    def _there(self) -> int:
        return len(self._file.rows) - self._others

    def _say(self, text: str) -> None:
        print(
            f"\r\033[K{text}" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )
