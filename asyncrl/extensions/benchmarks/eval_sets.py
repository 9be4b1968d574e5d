"""`asyncrl eval CHECKPOINT... --on SET,...`: known data sets, under one budget of thinking or several."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.extensions.benchmarks.budget_curve import Budget
    from asyncrl.extensions.benchmarks.suite import Suite

MAX_TOKENS = 1024
"""The most tokens of an answer, unless it is said."""
LEAST = {"limit": 1, "samples": 1, "max_tokens": 1, "temperature": 0, "most_thinking": 0, "least_thinking": 1}
"""What options must be at least."""


def run_sets(args: argparse.Namespace, sets: dict[str, str]) -> int:
    """Evaluate checkpoints on data sets. Raises `ConfigError` and what ends an evaluation."""
    from asyncrl.extensions.benchmarks.eval_suite import run_suite

    _check(args)
    budgets = list(_budgets(args))
    suites = [_suite(args, sets, budget) for budget in budgets]
    if len(suites) == 1:
        if args.price:
            raise ConfigError("eval: --price goes with several budgets, as in --most-thinking 128,256")
        return run_suite(args, suites[0])
    return _run_budgets(args, budgets, suites)


def _check(args: argparse.Namespace) -> None:
    """Refuse what does not go with data sets."""
    for option in ("tasks", "rows"):
        if getattr(args, option) is not None:
            raise ConfigError(
                f"eval: --{option} goes with --env or a run; --on has --limit and writes all samples"
            )
    check_least(args)


def check_least(args: argparse.Namespace) -> None:
    """Refuse values that are too small. Raises `ConfigError`."""
    for option, smallest in LEAST.items():
        given = getattr(args, option)
        for value in given if isinstance(given, tuple) else () if given is None else (given,):
            if not value >= smallest:
                raise ConfigError(
                    f"eval: --{option.replace('_', '-')}: must be at least {smallest}, got {value}"
                )


def _budgets(args: argparse.Namespace) -> Iterator[Budget]:
    from asyncrl.extensions.benchmarks.budget_curve import Budget

    for option in ("most_thinking", "least_thinking"):
        given = getattr(args, option) or ()
        if len(set(given)) != len(given):
            raise ConfigError(f"eval: --{option.replace('_', '-')}: has a number twice")
    for most, least in itertools.product(args.most_thinking or (None,), args.least_thinking or (None,)):
        yield Budget(most, least)


def _suite(args: argparse.Namespace, sets: dict[str, str], budget: Budget) -> Suite:
    from asyncrl.extensions.benchmarks.suite import suite_on

    return suite_on(
        sets,
        args.limit or 0,
        args.samples or 1,
        args.max_tokens or MAX_TOKENS,
        1.0 if args.temperature is None else args.temperature,
        (budget.most, budget.least),
    )


def _run_budgets(args: argparse.Namespace, budgets: Sequence[Budget], suites: Sequence[Suite]) -> int:
    """Evaluate under each budget in a folder of its own, then put all of them on one page."""
    from asyncrl.extensions.benchmarks.budget_curve import parse_prices
    from asyncrl.extensions.benchmarks.eval_suite import run_suite
    from asyncrl.extensions.benchmarks.leaderboard_command import write_leaderboard
    from asyncrl.extensions.benchmarks.suite_play import suite_config

    parse_prices(args.price, args.checkpoint)
    for suite in suites:
        # A budget that leaves no room for an answer is refused before any is played.
        for checkpoint in args.checkpoint:
            suite_config(suite, checkpoint, args.recipe, args.overrides)
    folder = args.out or Path("evals") / suites[0].name
    failed = 0
    for budget, suite in zip(budgets, suites, strict=True):
        print(f"thinking {budget.text}:")
        args.out = folder / f"thinking {budget.text}".replace(",", "").replace(" ", "-")
        failed = max(failed, run_suite(args, suite))
    write_leaderboard(folder, folder, "", args.price)
    return failed
