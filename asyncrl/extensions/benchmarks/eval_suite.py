"""`asyncrl eval --suite NAME CHECKPOINT...` and `--on SET,...`: plays what is missing, then writes the reports."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from asyncrl.errors import AsyncRLError, ConfigError
from asyncrl.extensions.benchmarks.reporting import report
from asyncrl.extensions.benchmarks.samples import SampleFile
from asyncrl.extensions.benchmarks.suite import Suite, check_digests, part_tasks
from asyncrl.extensions.benchmarks.suite_play import check_suite, open_evaluation, play_suite, suite_config
from asyncrl.extensions.benchmarks.trained_on import look_for, training_data

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
        return report(
            folder,
            result,
            file.rows,
            checkpoints,
            args.checkpoint,
            args.fail_under,
            look_for(tasks, training),
        )
    finally:
        file.close()


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
