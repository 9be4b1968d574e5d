"""Options of `asyncrl eval` for suites, data sets by name, and tasks of other programs."""

from __future__ import annotations

import argparse
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.eval_sets import MAX_TOKENS, check_least, run_sets
from asyncrl.extensions.table import Row, by_name, rows
from asyncrl.launch.evaluation.kinds import EvaluationKind

OF_SETS = ("limit", "max_tokens", "temperature", "most_thinking", "least_thinking", "price")
"""Options that go with --on alone."""
NOT_BY_ALL = (
    *("tasks", "rows", "recipe", "trained_on", "samples", "max_tokens", "temperature"),
    *("most_thinking", "least_thinking", "price"),
)
"""Options that another program follows only where its row says so."""
NOT_GIVEN: tuple[object, ...] = (None, "", [])
"""Values of options that were left out."""


class Benchmarks(EvaluationKind):
    """Checkpoints are compared on the tasks of a suite, of data sets, or of another program."""

    asked_by = {"suite": "--suite NAME", "on": "--on SET"}  # noqa: RUF012 - the base class says what it is
    about = (
        "With --suite or --on several checkpoints are compared; an evaluation that was stopped goes on when its "
        "command is given again."
    )
    several = "without --suite and --on; `asyncrl compare` compares the --rows of several"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `EvaluationKind.add_options`."""
        add_options(parser)

    def check(self, args: argparse.Namespace) -> None:
        """See `EvaluationKind.check`."""
        for option in OF_SETS:
            if getattr(args, option) not in (None, []) and not args.on:
                raise ConfigError(f"eval: --{option.replace('_', '-')} goes with --on")
        program = _program(args.on or "")
        for row in rows("evaluators"):
            for option in row.options:
                if row is not program and getattr(args, _name(option)) not in NOT_GIVEN:
                    raise ConfigError(f"eval: {option} goes with --on {row.name}/TASK")

    def run(self, args: argparse.Namespace) -> int:
        """See `EvaluationKind.run`."""
        if program := _program(args.on or ""):
            return _run_other(args, program)
        if args.on:
            return run_sets(args, _sets(args.on))
        from asyncrl.extensions.benchmarks.eval_suite import run_suite
        from asyncrl.extensions.benchmarks.suite import load_suite

        for option in ("tasks", "samples", "rows"):
            if getattr(args, option) is not None:
                raise ConfigError(
                    f"eval: --{option} goes with --env or a run; a suite says itself what is played"
                )
        return run_suite(args, load_suite(args.suite))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", metavar="NAME|FILE", help="a suite by name, or its TOML file")
    parser.add_argument(
        "--on",
        metavar="SET[=FILE],...",
        help="known data sets (`asyncrl env list` has them), from the hub or from files, such as "
        f"gsm8k=test.jsonl,svamp; or tasks {'; or '.join(row.help for row in rows('evaluators'))}, which these play "
        "and judge",
    )
    parser.add_argument("--temperature", type=float, help="with --on: of the answers (1.0)")
    parser.add_argument(
        "--most-thinking",
        type=_numbers,
        metavar="N,...",
        help="with --on: tokens after which thinking is ended; of several numbers each is evaluated, and success is "
        "drawn against tokens",
    )
    parser.add_argument(
        "--least-thinking",
        type=_numbers,
        metavar="N,...",
        help='with --on: tokens before which it goes on, after "Wait"; likewise',
    )
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="[CHECKPOINT=]READ,SAMPLED",
        help="with several budgets of thinking: what a million tokens cost that a checkpoint reads and samples; may be "
        "repeated",
    )
    for row in rows("evaluators"):
        for option, about in row.options.items():
            told: dict[str, Any] = {**about, "help": f"with {row.name}/TASK: {about['help']}"}
            parser.add_argument(option, default=None, **told)
    parser.add_argument("--limit", type=int, help="with --on: the first tasks of each set (all)")
    parser.add_argument("--max-tokens", type=int, help=f"with --on: tokens of an answer ({MAX_TOKENS})")
    parser.add_argument(
        "--trained-on",
        action="append",
        default=[],
        metavar="FILE|SET",
        help="with --suite and --on: training data that the report looks for in the tasks, beside that of the runs "
        "that the checkpoints are of; may be repeated",
    )


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _program(given: str) -> Row | None:
    """Return the other program that any of these sets is a task of; None where all are data sets."""
    known = by_name("evaluators")
    prefixes = [one.strip().partition("/")[0] for one in given.split(",") if "/" in one.partition("=")[0]]
    return next((known[one] for one in prefixes if one in known), None)


def _run_other(args: argparse.Namespace, program: Row) -> int:
    """Have another program evaluate checkpoints on its tasks. Raises `ConfigError`."""
    for option in NOT_BY_ALL:
        if option not in program.takes and getattr(args, option) not in NOT_GIVEN:
            raise ConfigError(f"eval: --{option.replace('_', '-')} does not go with --on {program.name}/TASK")
    check_least(args)
    found: int = program.load()(args, _sets(args.on))
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _sets(given: str) -> dict[str, str]:
    """Return the file of each data set of `--on`, "" for those of the hub. Raises `ConfigError`."""
    pairs = [one.strip().partition("=") for one in given.split(",")]
    found = {name: file for name, _, file in pairs}
    if "" in found or len(found) != len(pairs) or any(equals and not file for _, equals, file in pairs):
        raise ConfigError(f"--on: must be different sets, as in gsm8k=test.jsonl,svamp; got {given!r}")
    return found
