"""`asyncrl judge check RECIPE` and `asyncrl judge agree FILE RECIPE`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.config import Config
    from asyncrl.extensions.judge.agreement import Agreement
    from asyncrl.extensions.judge.check import Report
    from asyncrl.extensions.judge.client import JudgeClient
    from asyncrl.extensions.judge.settings import JudgeConfig


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser("judge", help="attack a recipe's judge, or compare it with labels")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = commands.add_parser(
        "check",
        help="send answers that try to get a score they have not earned",
        description="Send answers that try to get a score they have not earned. Exit status 0: all of them held.",
    )
    _add_recipe(check)
    check.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="attacks whose name contains TEXT"
    )
    check.set_defaults(run=run_check)
    agree = commands.add_parser(
        "agree",
        help="compare the judge's scores with labels, and see what else they follow",
        description="Compare the judge's scores with labels, and see whether length or order moves them.",
    )
    agree.add_argument("file", metavar="FILE", type=Path, help="JSON lines (docs/rewards.md)")
    _add_recipe(agree)
    agree.add_argument("--pairs", type=int, default=100, help="pairs to compare in both orders (default 100)")
    agree.set_defaults(run=run_agree)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="recipe with a [judge]: a file, folder or name")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run_check(args: argparse.Namespace) -> int:
    """Exit status: 0 all held, 1 an attack did something, or the judge does not tell right from wrong."""
    from asyncrl.errors import ConfigError
    from asyncrl.extensions.judge.check import attacks_named, check

    if not attacks_named(args.only):
        raise ConfigError(f"--only: no attack has a name with {' or '.join(args.only)}")
    report = _with_judge(args, lambda config, judge: check(config, judge, args.only))
    if args.json:
        print(json.dumps(asdict(report), indent=1))
    else:
        _print_report(report)
    return 0 if report.held else 1


def run_agree(args: argparse.Namespace) -> int:
    """Exit status 0 once there is a report, whatever it says."""
    from asyncrl.extensions.judge.agreement import agree, read_rows

    rows = read_rows(args.file)
    found = _with_judge(args, lambda config, judge: agree(config, judge, rows, args.pairs))
    if args.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        _print_agreement(found)
    return 0


def _with_judge(args: argparse.Namespace, ask: Callable[[JudgeConfig, JudgeClient], Awaitable[Any]]) -> Any:
    """Return what `ask` says of the recipe's judge. Raises `ConfigError` for a recipe without a server."""
    from asyncrl.config import load_config
    from asyncrl.errors import ConfigError
    from asyncrl.extensions.judge.client import JudgeClient
    from asyncrl.extensions.judge.settings import KEY, JudgeConfig

    whole = load_config(args.recipe, args.overrides)
    config = whole.section(JudgeConfig)
    if not config.served:
        raise ConfigError(
            f"judge.url: recipe {args.recipe} has no judge; give one, such as judge.url=http://..."
        )

    async def scenario(url: str, key: str) -> Any:
        judge = JudgeClient(config, key, url=url)
        try:
            return await ask(config, judge)
        finally:
            await judge.close()

    if config.url:
        return asyncio.run(scenario("", os.environ.get(KEY, "")))
    with _own_server(whole) as (url, key):
        return asyncio.run(scenario(url, key))


@contextmanager
def _own_server(config: Config) -> Iterator[tuple[str, str]]:
    """Serve the recipe's own judge; yield where it is asked, and the bearer key. Raises `ConfigError`."""
    from asyncrl.extensions.judge.checks import check_folder
    from asyncrl.extensions.judge.judging import server_of
    from asyncrl.extensions.judge.settings import JudgeConfig
    from asyncrl.launch.machines.placement import Placement
    from asyncrl.launch.processes.process_group import ProcessGroup
    from asyncrl.launch.roles.roles import start_beside_workers
    from asyncrl.rollout.worker_context import WorkerContext
    from asyncrl.scratch import scratch_folder

    if config.section(JudgeConfig).kind == "folder":
        check_folder(config, alone=True)
    with scratch_folder("judge") as folder:
        group = ProcessGroup(folder)
        (folder / "config.json").write_text(config.model_dump_json())
        try:
            beside = start_beside_workers(group, config, folder, Placement(), model=config.model.path)
            start_s = config.run.start_timeout_s
            urls = {role: group.wait_ready(process, start_s) for role, process in beside.items()}
            yield server_of(WorkerContext(config, urls, group.credentials.bearer))
        finally:
            group.stop()


def _print_report(report: Report) -> None:
    for finding in report.findings:
        print(f"{finding.status:10} {finding.attack:30} gain {finding.gain:+.2f}")
        for detail in finding.details:
            print(f"           {detail[:300]}")
    held = sum(one.status == "held" for one in report.findings)
    print(f"\n{held} held, {len(report.findings) - held} did not")
    if report.blind:
        print(
            f"on {', '.join(report.blind)} the right answer got no more than the wrong one: this judge cannot tell "
            "them apart, and that attacks gain nothing there says nothing"
        )


def _print_agreement(found: Agreement) -> None:
    low, high = found.interval
    print(f"rows            {found.rows}, of which {found.failed} could not be judged")
    if found.first_error:
        print(f"                first error: {found.first_error[:300]}")
    print(
        f"agreement       Spearman {found.spearman:+.3f} (95 %: {low:+.3f} to {high:+.3f}), "
        f"Kendall {found.kendall:+.3f}"
    )
    if found.auc is not None:
        print(f"                area under the ROC curve {found.auc:.3f}")
    print(
        f"length          of scores {found.length:+.3f}, of labels {found.label_length:+.3f}, of scores beyond the "
        f"labels' {found.partial_length:+.3f}"
    )
    if found.pairs is None:
        print("pairs           none was compared")
        return
    pairs = found.pairs
    print(
        f"pairs           {pairs.count}: the better one preferred {pairs.better:.1%}, both orders agree "
        f"{pairs.consistent:.1%}, the one shown first preferred {pairs.first:.1%}"
    )
