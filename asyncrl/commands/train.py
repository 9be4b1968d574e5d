"""`asyncrl train RECIPE [key=value ...]`"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import AsyncRLError, ConfigError, InputError, StorageError
from asyncrl.extensions.table import rows
from asyncrl.launch.checks.start_check import start_checks
from asyncrl.launch.cluster import cluster_kinds, cluster_request
from asyncrl.signals import end_like_interrupted

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

    # Imported when it is used, so that `--help` is fast.
    from asyncrl.config import Config
    from asyncrl.launch.cluster import FurtherMachines


def add(subparsers: Subparsers) -> None:
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
    add_machines(parser)
    for check in start_checks():
        check.add_options(parser)
    parser.set_defaults(run=run, loads_models=True)


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Add the options that say on which machines a run is."""
    clusters, kinds = rows("cluster_kinds"), cluster_kinds()
    rendering = [name for name, kind in kinds.items() if kind.renders]
    machines = parser.add_argument_group(
        "machines", "docs/scaling.md; by default the run is on this machine alone"
    )
    machines.add_argument(
        "--on",
        choices=("local", *(row.name for row in clusters)),
        default="local",
        help="; ".join(("local: this machine", *(f"{row.name}: {row.help}" for row in clusters))),
    )
    machines.add_argument(
        "--nodes",
        type=int,
        default=0,
        metavar="N",
        help="with --on nodes the machines to wait for beside this one, with --render those of the whole run",
    )
    machines.add_argument(
        "--host",
        default="",
        help="this machine's address for the others; by default that of its default route",
    )
    machines.add_argument("--port", type=int, default=0, help="port at which nodes register (8700)")
    machines.add_argument(
        "--advertise",
        default="",
        metavar="HOST",
        help="name or address under which they reach it, if not --host",
    )
    machines.add_argument(
        "--render",
        type=Path,
        metavar="FOLDER",
        help=f"with --on {' or '.join(rendering)}: write there what the run is submitted with, and submit nothing",
    )
    machines.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="with --render: GPUs of each machine"
    )
    machines.add_argument(
        "--site",
        type=Path,
        metavar="FILE",
        help="with --render: a TOML file with what the cluster asks of every job (docs/scaling.md#your-cluster)",
    )
    for kind in kinds.values():
        kind.add_options(machines)


def _cluster(args: argparse.Namespace, config: Config) -> FurtherMachines | None:
    """Return the further machines of the run, None without any. Raises `ConfigError`."""
    if args.on == "local":
        if args.nodes:
            raise ConfigError(
                f"--nodes {args.nodes}: needs --on nodes, which waits for so many machines to join"
            )
        return None
    return cluster_kinds()[args.on].machines(args, config)


def _render(args: argparse.Namespace) -> int:
    """Write what a run is submitted with."""
    from asyncrl.config import find_recipe, load_config
    from asyncrl.run.folder import choose_folder

    rendering = {name: kind for name, kind in cluster_kinds().items() if kind.renders}
    if args.on not in rendering:
        raise ConfigError(
            f"--render {args.render}: needs {' or '.join(f'--on {name}' for name in rendering)}"
        )
    if not args.recipe or args.resume is not None:
        raise ConfigError("--render: give a recipe; a run that was interrupted is resumed by the same files")
    config = load_config(args.recipe, args.overrides)
    name = choose_folder(config, find_recipe(args.recipe)).name
    kind, request = rendering[args.on], cluster_request(config, name, max(1, args.nodes), args.gpus)
    files = kind.render(args, config, request)
    args.render.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (args.render / file).write_text(text)
        print(args.render / file)
    print(f"submit it: {kind.submission(args.render, request)}", file=sys.stderr)
    return 0


def run(args: argparse.Namespace) -> int:
    from asyncrl.launch.checks.check import check_run
    from asyncrl.launch.checks.untried import untried
    from asyncrl.launch.train import TrainRun, describe
    from asyncrl.run.folder import RunFolder
    from asyncrl.run.totals import finished_summary

    if args.render is not None:
        return _render(args)
    end_like_interrupted()
    config, path = _chosen(args)
    if args.resume is not None and (done := finished_summary(path, config.train.num_steps)):
        _print_finished(done, path)
        return 0
    on = _cluster(args, config)
    for combination in untried(config):
        print(f"warning: {combination}; if it fails, please report it with the logs", file=sys.stderr)
    for note in check_run(config, alone=on is None):
        print(f"note: {note}", file=sys.stderr)
    for check in start_checks():
        config = check.check(args, config, on is None)
    with RunFolder(path) as folder, _resumable(path):
        print(f"run folder: {path}", file=sys.stderr)
        training = TrainRun(config, folder, args.resume is not None, on)
        summary = training.run()
        if training.eval_before and training.eval_after:
            print(f"held-out before: {describe(training.eval_before)}")
            print(f"held-out after:  {describe(training.eval_after)}")
        _print_summary(summary, path)
    model = training.roles.main.model
    return max((check.after(args, config, model, path) for check in start_checks()), default=0)


def _print_summary(summary: dict[str, Any], path: Path) -> None:
    print(
        f"{summary['steps']} step{'s' * (summary['steps'] != 1)} in {summary['train_wall_s']:.0f} s, staleness at most "
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
    from asyncrl.config import find_recipe
    from asyncrl.launch.models.local_models import load_recipe, reopen_run
    from asyncrl.run.folder import choose_folder

    if args.resume is not None:
        # Without a recipe the first word is an override.
        overrides = _settings(args, [word for word in (args.recipe, *args.overrides) if word])
        return reopen_run(args.resume, overrides), args.resume
    if not args.recipe:
        raise ConfigError("train: give a recipe, or --resume and the folder of a run")
    config = load_recipe(args.recipe, _settings(args, args.overrides))
    return config, choose_folder(config, find_recipe(args.recipe))


def _settings(args: argparse.Namespace, overrides: Sequence[str]) -> Sequence[str]:
    """Return the settings of the command line, with those that options of extensions stand for."""
    for check in start_checks():
        overrides = check.settings(args, overrides)
    return overrides
