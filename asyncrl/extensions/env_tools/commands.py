"""`asyncrl env list | new FILE | check NAME... | --all | play NAME`"""

from __future__ import annotations

import argparse
import asyncio
import importlib.resources
import json
import threading
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from asyncrl.config import parse_value
from asyncrl.console import shown
from asyncrl.env.config_check import check_settings
from asyncrl.env.host import EnvHost, end_launcher
from asyncrl.env.protocol import Action, Env, ToolCall
from asyncrl.env.registry import ELSEWHERE, ENVS, load_env
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_tools.check import TASKS, check_env
from asyncrl.rows.known_sets import known_sets
from asyncrl.rows.settings import with_data
from asyncrl.types import Message, Task

EXAMPLE = "GuessNumber"
"""The environment in `example.py`."""
HOW_TO_PLAY = (
    'A line that begins with a tool\'s name is a call: TOOL {"argument": ...}, or TOOL TEXT where it takes one text. '
    "Any other line is an answer; ``` opens one of several lines and closes it. End of input ends the game."
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's own words."""
    parser = argparse.ArgumentParser(prog="asyncrl env", description="List, check and play environments.")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    commands.add_parser(
        "list", help="names, first lines, and what is missing to use them (also without a command)"
    )
    new = commands.add_parser("new", help="write a file with an environment to change")
    new.add_argument("file", type=Path, help="the file to write, such as my_env.py")
    check = commands.add_parser("check", help="determinism, oracle, splits, isolation, speed")
    check.add_argument("names", nargs="*", help="names or import paths")
    check.add_argument("--all", action="store_true", help="every registered environment that can start")
    check.add_argument(
        "--tasks", type=int, default=0, help=f"tasks to look at (default {TASKS}, fewer where slow)"
    )
    check.add_argument(
        "--slow-turn-s", type=float, metavar="SECONDS", help="agent alone: the slow turn's time (default 20)"
    )
    play = commands.add_parser("play", help="play one in the terminal", description=HOW_TO_PLAY)
    play.add_argument("name")
    play.add_argument("--seed", type=int, default=0, help="seed, or number of the task in a list of tasks")
    for command in (check, play):
        command.add_argument(
            "--config",
            type=_object,
            default={},
            metavar="TABLE",
            help="settings, such as '{level = 2}' or '{\"level\": 2}'",
        )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one sub-command; return its exit code."""
    args = build_parser().parse_args(list(argv))
    if args.command in (None, "list"):
        return _list()
    if args.command == "new":
        return _new(args.file)
    if args.command == "check":
        if args.slow_turn_s is not None:
            raise ConfigError(
                "env check: --slow-turn-s is for the check of an agent program: env check agent"
            )
        return _check(args.names, args.all, args.config, args.tasks)
    return asyncio.run(_play(args.name, args.seed, args.config))


def read_action(line: str, tools: list[dict[str, Any]]) -> Action:
    """Return the action a person typed: `TOOL {"argument": ...}`, `TOOL TEXT` or `TOOL` is a call, anything else an
    answer.

    TEXT is the value of a tool's only argument, if that is a text.
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
    width = max(map(len, ENVS)) + 1
    for name in sorted(ENVS | ELSEWHERE):
        env_class = load_env(name)
        first_line = (env_class.__doc__ or "").strip().splitlines()[0]
        missing = _missing(env_class)
        print(f"{name:{width}s}{first_line}" + (f" [needs {missing}]" if missing else ""))
    print("\nknown data sets, whose names stand for an environment, too (docs/data.md):")
    for name, found in known_sets().items():
        print(f"{name:{width}s}{found.about} ({found.licence})")
    return 0


def _new(file: Path) -> int:
    """Write the example of an environment to `file`, and print what to do with it."""
    file = file if file.suffix == ".py" else file.with_name(f"{file.name}.py")
    # In the current folder it is found as a module, anywhere else as a file.
    here = file.parent == Path() and file.stem.isidentifier()
    name = f"{file.stem if here else file}:{EXAMPLE}"
    text = importlib.resources.files(__package__).joinpath("example.py").read_text(encoding="utf-8")
    try:
        with open(file, "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise ConfigError(
            f"env new: {str(file)!r} is there already; give another name, or remove it"
        ) from None
    except OSError as error:
        raise ConfigError(f"env new: {str(file)!r} cannot be written: {error}") from error
    print(
        f"{file} has the environment {EXAMPLE}, which is yours to change. Check it, play it, train a tiny model on it:"
    )
    for command in ("env check", "env play", "train gridworld_grpo"):
        print(f"    asyncrl {command} {'env.name=' if command.startswith('train') else ''}{name}")
    return 0


def _missing(env_class: type[Env]) -> str:
    """Return what prevents an environment from starting without settings, as adapters report it."""
    missing = getattr(env_class, "missing", None)
    return "" if missing is None else missing()


def _check(names: Sequence[str], everything: bool, config: dict[str, Any], tasks: int) -> int:
    failed = 0
    for name in sorted(ENVS) if everything else names:
        print(name)
        name, settings = _of_set(name, config)
        env_class = load_env(name)
        if everything and (missing := _missing(env_class)):
            print(f"  skipped: needs {missing}")
            continue
        check_settings(name, settings, "--config")
        for finding in check_env(name, settings, tasks or getattr(env_class, "check_tasks", TASKS)):
            failed += not finding.ok
            print(shown(f"  {'ok' if finding.ok else 'FAILED':8s}{finding.name}: {finding.seen}"))
    return 1 if failed or not (names or everything) else 0


def _of_set(name: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the environment that plays a known data set, with its settings, for which `config` is as `[data]`; any
    other environment as given. Raises `ConfigError`."""
    if name not in known_sets():
        return name, config
    if player := known_sets()[name].env:
        raise ConfigError(
            f"{name!r} is played by the environment {player!r}; see its rows by `asyncrl try RECIPE env.name={name}`"
        )
    try:
        env = with_data({"env": {"name": name}, "data": config})["env"]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return env["name"], env["config"]


async def _play(name: str, seed: int, config: dict[str, Any]) -> int:
    """Print observations and read actions until the episode ends."""
    name, config = _of_set(name, config)
    check_settings(name, config, "--config")
    host = EnvHost(lease_s=24 * 3600.0)
    try:
        session = await host.open(_task(name, seed, config), config)
        print("Write what the agent says, a line a turn. Ctrl-D ends the game.")
        _show(session.messages)
        for tool in session.env.tools:
            print(f"[tool] {json.dumps(tool['function'])}")
        total = 0.0
        for turn in range(session.env.max_turns):
            try:
                text = await _typed()
            except EOFError:
                print()
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


def _task(name: str, seed: int, config: dict[str, Any]) -> Task:
    """Return the task of a seed, or the one with that number if the environment lists its tasks."""
    env_class = load_env(name)
    if getattr(env_class.tasks, "__func__", None) is getattr(Env.tasks, "__func__", None):
        return Task(f"seed-{seed}", name, seed)
    task = next(islice(env_class.tasks("train", name, **config), seed, None), None)
    if task is None:
        raise ConfigError(f"--seed {seed}: the train split of {name!r} has fewer tasks")
    return task


async def _typed() -> str:
    """Read a turn while the environment goes on. Raises `EOFError`."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        try:
            text = _read()
        except (EOFError, OSError, ValueError):
            loop.call_soon_threadsafe(typed.set_exception, EOFError())
        else:
            loop.call_soon_threadsafe(typed.set_result, text)

    # The process must end at Ctrl-C, although the thread still waits for a line.
    threading.Thread(target=read, daemon=True).start()
    return await typed


def _read() -> str:
    """Read one line, or several after an opening code fence. Raises `EOFError`."""
    lines = [input("> ")]
    if lines[0].startswith("```"):
        while lines[-1] != "```" or len(lines) == 1:
            lines.append(input("  "))
    return "\n".join(lines)


def _show(messages: list[Message]) -> None:
    for message in messages:
        print(shown(f"[{message['role']}] {message['content']}"))


def _object(text: str) -> dict[str, Any]:
    try:
        value = parse_value("settings", text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(
            f'must be a table such as {{level = 2}} or {{"level": 2}}, got {text}'
        )
    return value
