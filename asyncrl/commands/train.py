"""`asyncrl train RECIPE [key=value ...]`"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import AsyncRLError, ConfigError, InputError, StorageError

if TYPE_CHECKING:
    # Imported when it is used, so that `--help` is fast.
    from asyncrl.config import Config


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="run a recipe: start every process, train, evaluate before and after",
        description="Run a recipe. Everything it leaves is in runs/NAME: configuration, metrics, trajectories, "
        "logs, checkpoints, reward.png and summary.json.",
    )
    parser.add_argument(
        "recipe",
        nargs="?",
        default="",
        help="a TOML file, a folder with recipe.toml, or a name that `asyncrl recipes` lists",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, such as train.num_steps=20"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="runs/NAME",
        help="resume an interrupted run from its newest checkpoint; settings may change except those of "
        "run, model, env and algo",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.launch.check import check_run
    from asyncrl.launch.train import TrainRun, describe
    from asyncrl.plan.refuse import check_memory
    from asyncrl.run.folder import RunFolder
    from asyncrl.run.totals import finished_summary

    signal.signal(signal.SIGTERM, _interrupt)
    config, path = _chosen(args)
    if args.resume is not None and (done := finished_summary(path, config.train.num_steps)):
        _print_finished(done, path)
        return 0
    check_run(config)
    check_memory(config)
    with RunFolder(path) as folder, _resumable(path):
        print(f"run folder: {path}", file=sys.stderr)
        training = TrainRun(config, folder, resume=args.resume is not None)
        summary = training.run()
        if training.eval_before and training.eval_after:
            print(f"held-out before: {describe(training.eval_before)}")
            print(f"held-out after:  {describe(training.eval_after)}")
        _print_summary(summary, path)
    return 0


def _print_summary(summary: dict[str, Any], path: Path) -> None:
    print(
        f"{summary['steps']} steps in {summary['train_wall_s']:.0f} s, staleness at most "
        f"{summary['staleness']['max']} of {summary['max_staleness']} allowed; "
        f"engine busy {summary['busy']['engine']:.0%}, trainer busy {summary['busy']['trainer']:.0%}"
    )
    print(f"plot: {path / 'reward.png'}   summary: {path / 'summary.json'}")


def _print_finished(summary: dict[str, Any], path: Path) -> None:
    """Say that a run is finished, and how to train for more steps."""
    print(f"finished: {path}; nothing was started")
    _print_summary(summary, path)
    if summary["plan_ended"]:
        print(
            "every task of its plan was used; to train more, start a new run from its checkpoint: "
            f"asyncrl train RECIPE model.path={path / summary['checkpoint']}"
        )
    else:
        print(f"for more steps: asyncrl train --resume {path} train.num_steps={2 * summary['steps']}")


@contextlib.contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Add to an error that ends the run how to resume it, once there is a run to resume."""
    from asyncrl.disk import disk_problem

    try:
        yield
    except (ConfigError, InputError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        problem = "" if isinstance(error, AsyncRLError) else disk_problem(error)
        raised = StorageError(problem) if problem else error
        if (path / "config.json").is_file():
            raised.add_note(f"resume the run: asyncrl train --resume {path}")
        raise raised from error.__cause__


def _chosen(args: argparse.Namespace) -> tuple[Config, Path]:
    """Return the configuration and folder of a new or resumed run."""
    from asyncrl.config import find_recipe, load_config
    from asyncrl.run.folder import choose_folder, open_run

    if args.resume is not None:
        # Without a recipe the first word is an override.
        overrides = [word for word in (args.recipe, *args.overrides) if word]
        return open_run(args.resume, overrides), args.resume
    if not args.recipe:
        raise ConfigError("train: give a recipe, or --resume and the folder of a run")
    config = load_config(args.recipe, args.overrides)
    return config, choose_folder(config, find_recipe(args.recipe))


def _interrupt(signum: int, frame: object) -> None:
    """Treat SIGTERM like Ctrl-C, so that processes are stopped in order."""
    raise KeyboardInterrupt
