"""`asyncrl env list | check NAME... | --all | play NAME`"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence

from asyncrl.env.check import check_env
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action
from asyncrl.env.registry import ENVS, load_env
from asyncrl.types import Task


def main(argv: Sequence[str]) -> int:
    """Run one sub-command; return its exit code."""
    parser = argparse.ArgumentParser(prog="asyncrl env", description="List, check and play environments.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names and first lines")
    check = commands.add_parser("check", help="determinism, oracle, splits, isolation, speed")
    check.add_argument("names", nargs="*", help="names or import paths")
    check.add_argument("--all", action="store_true", help="every registered environment")
    play = commands.add_parser("play", help="play one in the terminal")
    play.add_argument("name")
    play.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(list(argv))
    if args.command == "list":
        return _list()
    if args.command == "check":
        return _check(sorted(ENVS) if args.all else args.names)
    return asyncio.run(_play(args.name, args.seed))


def _list() -> int:
    for name in sorted(ENVS):
        print(f"{name:16s}{(load_env(name).__doc__ or '').strip().splitlines()[0]}")
    return 0


def _check(names: Sequence[str]) -> int:
    failed = 0
    for name in names:
        print(name)
        for finding in check_env(name):
            failed += not finding.ok
            print(f"  {'ok' if finding.ok else 'FAILED':8s}{finding.name}: {finding.seen}")
    return 1 if failed or not names else 0


async def _play(name: str, seed: int) -> int:
    """Print observations and read actions until the episode ends."""
    host = EnvHost(lease_s=24 * 3600.0)
    session = await host.open(Task(f"seed-{seed}", name, seed), {})
    total = 0.0
    for message in session.messages:
        print(f"[{message['role']}] {message['content']}")
    for tool in session.env.tools:
        print(f"[tool] {json.dumps(tool['function'])}")
    for turn in range(session.env.max_turns):
        try:
            text = await asyncio.to_thread(input, "> ")
        except EOFError:
            break
        step = await host.step(session.id, turn, Action(text.strip()), 3600.0)
        total += step.reward
        for message in step.messages:
            print(f"[{message['role']}] {message['content']}")
        if step.done:
            print(f"done: reward {total:g}" + ("" if step.success is None else f", success {step.success}"))
            break
    await host.close_all()
    return 0
