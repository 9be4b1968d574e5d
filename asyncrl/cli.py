"""The command `asyncrl`. Each sub-command imports what it needs, so `--help` answers at once.

Exit codes: 0 done, 1 the run failed, 2 the command line or configuration is wrong, 130 interrupted, 141 the reader of
the output is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import logging
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl import __version__
from asyncrl.commands.kinds import kinds_of
from asyncrl.console import advice_for, escape_logging, shown
from asyncrl.errors import AsyncRLError, ConfigError, InputError
from asyncrl.extensions.table import Row, rows
from asyncrl.gpus import on_cpu
from asyncrl.http_clients import exempt
from asyncrl.import_path import search_last
from asyncrl.machine import name_user, open_files, writable_caches
from asyncrl.process_start import leave_safe_path

COMMANDS = (
    "train",
    "try",
    "runs",
    "logs",
    "recipes",
    "serve",
    "eval",
    "config",
    "tls",
    "completion",
)
"""Modules of `asyncrl.commands`, in the order `--help` shows them."""

MODULES = {"try": "try_rows"}
"""Modules of commands whose names are words of Python."""

READER_GONE = 141
"""The exit code of a program that SIGPIPE ends."""

EPILOG = """\
examples:
  asyncrl recipes                                    list the recipes
  asyncrl train gridworld_grpo                       run one
  asyncrl try my.toml --rows 4                       see prompts, answers and rewards before training
  asyncrl train my.toml train.num_steps=50 run.seed=1
  asyncrl config gridworld_grpo                      print every setting, defaults included
  asyncrl eval runs/NAME/checkpoints/step-000010 --env gridworld --tasks 200 --samples 4
  asyncrl monitor runs                               see runs in a browser
  asyncrl doctor                                     say what this machine can run
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_gone():
            raise
        return READER_GONE


def _main(arguments: Sequence[str]) -> int:
    with contextlib.suppress(FileNotFoundError):
        # A user's own environment or reward is usually a file of the current folder.
        search_last(Path.cwd())
    leave_safe_path()
    if not arguments:
        build_parser().print_help(sys.stderr)
        return 2
    exempt()
    name_user()
    writable_caches()
    open_files()
    escape_logging()
    if on_cpu():
        # Otherwise DeepSpeed warns on the console that it has found no GPU.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        quiet_libraries()
    args = parse(arguments)
    # For the command that describes all others, and must not import this module.
    args.build_parser = build_parser
    try:
        if getattr(args, "loads_models", False):
            from asyncrl.installation import require_builds

            require_builds()
        return args.run(args)
    except (ConfigError, InputError) as error:
        return _say(error, str(error), 2)
    except AsyncRLError as error:
        return _say(error, str(error), 1)
    except OSError as error:
        if not (advice := advice_for(error)):
            raise
        return _say(error, f"{error}: {advice}", 2 if error.errno == errno.ENAMETOOLONG else 1)
    except KeyboardInterrupt as error:
        return _say(error, "interrupted", 130)


def quiet_libraries() -> None:
    """Keep bitsandbytes from warning of a kernel for 4-bit weights, which nothing here has, when it is imported."""
    logger = logging.getLogger("bitsandbytes")
    # To set a level empties what each of the thousands of loggers has stored.
    if logger.level != logging.ERROR:
        logger.setLevel(logging.ERROR)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the chosen command's arguments. Ends the process where they are wrong, or help was asked for."""
    arguments = _with_kind(arguments)
    parser = build_parser(arguments)
    known = commands()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
        close = difflib.get_close_matches(arguments[0], known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        parser.error(f"unknown command {arguments[0]!r}; {hint}there are {', '.join(known)}")
    args, rest = parser.parse_known_args(arguments)
    if rest:
        # argparse leaves what follows an option whose list may be empty.
        overrides = [word for word in rest if "=" in word and not word.startswith("-")]
        if overrides != rest or not hasattr(args, "overrides"):
            parser.error(f"unrecognized arguments: {' '.join(rest)}{_setting_hint(args, rest)}")
        args.overrides = [*args.overrides, *overrides]
    return args


def _setting_hint(args: argparse.Namespace, rest: Sequence[str]) -> str:
    """Return how a setting is written, where an unknown option looks like one."""
    first = next((word for word in rest if word.startswith("--") and "." in word.partition("=")[0]), "")
    if not first or not hasattr(args, "overrides"):
        return ""
    key, _, value = first.lstrip("-").partition("=")
    return f"; a setting is written without dashes: {key}={value or 'VALUE'}"


def _with_kind(arguments: Sequence[str]) -> list[str]:
    """Read `asyncrl runs FOLDER` as `runs list FOLDER`, and so each command that has kinds."""
    command, *rest = arguments or [""]
    kinds = kinds_of(command)
    if kinds and rest and rest[0] not in kinds and not rest[0].startswith("-"):
        rest = [kinds[0], *rest]
    return [command, *rest] if arguments else []


def _reader_gone() -> bool:
    """True when the reader of the output has gone, as `head` does; the rest of the output is then discarded.

    A broken pipe may also belong to a connection.
    """
    gone = False
    for stream in (sys.stdout, sys.stderr):
        # A stream that is no file of the system has no file descriptor.
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                gone = True
                # The interpreter flushes once more when it exits.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return gone


def _say(error: BaseException, text: str, code: int) -> int:
    """Print an error and its notes, which say how to continue; return the exit code."""
    for line in (text, *getattr(error, "__notes__", ())):
        print(shown(f"asyncrl: {line}"), file=sys.stderr)
    return code


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser; only the chosen command's module is imported, all of them for help."""
    parser = argparse.ArgumentParser(
        prog="asyncrl",
        description="Post-train language-model agents with asynchronous reinforcement learning.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"asyncrl {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    known = commands()
    for name, row in known.items():
        if chosen in known and chosen != name:
            continue
        if row is None:
            importlib.import_module(f"asyncrl.commands.{MODULES.get(name, name)}").add(subparsers)
        else:
            row.load()(subparsers)
    return parser


def commands() -> dict[str, Row | None]:
    """Return all commands in the order `--help` shows them: those of `COMMANDS`, then what extensions add."""
    return {**dict.fromkeys(COMMANDS), **{row.name: row for row in rows("commands")}}
