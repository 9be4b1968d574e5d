"""`asyncrl env list | check NAME... | --all | play NAME`"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Any

from asyncrl.env.check import check_env, end_launcher
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.registry import ENVS, load_env
from asyncrl.types import Message, Task

HOW_TO_PLAY = (
    'A line that begins with a tool\'s name is a call: TOOL {"argument": ...}, or TOOL TEXT where it takes one text. '
    "Any other line is an answer; ``` opens one of several lines and closes it. End of input ends the game."
)


def main(argv: Sequence[str]) -> int:
    """Run one sub-command; return its exit code."""
    parser = argparse.ArgumentParser(prog="asyncrl env", description="List, check and play environments.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names and first lines")
    check = commands.add_parser("check", help="determinism, oracle, splits, isolation, speed")
    check.add_argument("names", nargs="*", help="names or import paths")
    check.add_argument("--all", action="store_true", help="every registered environment")
    play = commands.add_parser("play", help="play one in the terminal", description=HOW_TO_PLAY)
    play.add_argument("name")
    play.add_argument("--seed", type=int, default=0)
    for command in (check, play):
        command.add_argument(
            "--config", type=_object, default={}, metavar="JSON", help="settings, such as '{\"level\": 2}'"
        )
    args = parser.parse_args(list(argv))
    if args.command == "list":
        return _list()
    if args.command == "check":
        return _check(sorted(ENVS) if args.all else args.names, args.config)
    return asyncio.run(_play(args.name, args.seed, args.config))


def read_action(line: str, tools: list[dict[str, Any]]) -> Action:
    """Return the action a person typed: `TOOL {"argument": ...}`, `TOOL TEXT` or `TOOL` is a call, all else an answer.

    TEXT stands for the one text argument of a tool that has no other.
    """
    name, _, rest = line.strip().partition(" ")
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    if name not in schemas:
        return Action(line.strip())
    properties = schemas[name].get("properties", {})
    only = next(iter(properties), "")
    try:
        arguments = json.loads(rest or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        if len(properties) != 1 or properties[only].get("type") != "string":
            return Action("", (), (f"{name} takes a JSON object with {', '.join(properties) or 'nothing'}",))
        arguments = {only: rest}
    return Action("", (ToolCall("call-0", name, arguments),))


def _list() -> int:
    for name in sorted(ENVS):
        print(f"{name:16s}{(load_env(name).__doc__ or '').strip().splitlines()[0]}")
    return 0


def _check(names: Sequence[str], config: dict[str, Any]) -> int:
    failed = 0
    for name in names:
        print(name)
        for finding in check_env(name, config):
            failed += not finding.ok
            print(f"  {'ok' if finding.ok else 'FAILED':8s}{finding.name}: {finding.seen}")
    return 1 if failed or not names else 0


async def _play(name: str, seed: int, config: dict[str, Any]) -> int:
    """Print observations and read actions until the episode ends."""
    host = EnvHost(lease_s=24 * 3600.0)
    try:
        session = await host.open(Task(f"seed-{seed}", name, seed), config)
        _show(session.messages)
        for tool in session.env.tools:
            print(f"[tool] {json.dumps(tool['function'])}")
        total = 0.0
        for turn in range(session.env.max_turns):
            try:
                text = await asyncio.to_thread(_read)
            except EOFError:
                break
            step = await host.step(session.id, turn, read_action(text, session.env.tools), 3600.0)
            total += step.reward
            _show(step.messages)
            if step.done:
                print(
                    f"done: reward {total:g}" + ("" if step.success is None else f", success {step.success}")
                )
                break
    finally:
        await host.close_all()
        await end_launcher()
    return 0


def _read() -> str:
    """One line, or several where a code fence is opened. Raises `EOFError`."""
    lines = [input("> ")]
    if lines[0].startswith("```"):
        while lines[-1] != "```" or len(lines) == 1:
            lines.append(input("  "))
    return "\n".join(lines)


def _show(messages: list[Message]) -> None:
    for message in messages:
        print(f"[{message['role']}] {message['content']}")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value
