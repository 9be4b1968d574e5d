"""`asyncrl eval CHECKPOINT` on its run's own tasks, on an environment, or as an agent program plays it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.commands.scratch_folder import scratch_folder
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.launch.evaluation.kinds import EvaluationKind, evaluation_kinds
from asyncrl.signals import end_like_interrupted

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

TASKS = 100
"""Held-out tasks that are played where neither --tasks nor the recipe says how many."""
CONTEXT, AGENT_CONTEXT = 4096, 65536
"""The longest context without a recipe, in tokens; that of an agent program holds its own long prompt."""
AGENT_TURN = 4096
OVERRIDE = re.compile(r"[a-z_]+(\.\w+)+=")


def add(subparsers: Subparsers) -> None:
    others, kinds = rows("evaluation_kinds"), evaluation_kinds()
    parser = subparsers.add_parser(
        "eval",
        help="evaluate a run on its own held-out tasks, or checkpoints on "
        + " or ".join(filter(None, (", ".join(row.help for row in others), "an environment"))),
        description="Of a run's folder or checkpoint alone, its own held-out tasks are played with its own settings. "
        "Mean reward, success and pass@k with intervals clustered by task. Failures of the environment "
        "or the infrastructure are counted apart and never enter a rate. "
        + " ".join(kind.about for kind in kinds),
    )
    changed = {option: about for row in others for option, about in row.options.items()}

    def option(name: str, **about: Any) -> None:
        parser.add_argument(name, **{**about, **changed.get(name, {})})

    option(
        "checkpoint",
        nargs="+",
        metavar="CHECKPOINT",
        help="a Hugging Face model folder, a hub name, or a run's folder for its newest checkpoint; then settings as "
        "key=value",
    )
    option("--env", help="environment name or import path")
    for kind in kinds:
        kind.add_options(parser)
    option(
        "--thinking",
        choices=("on", "off"),
        help="whether the model thinks first, where its chat template knows of it",
    )
    option("--harness", metavar="NAME|FILE", help="an agent program that plays, by name or TOML file")
    option(
        "--tasks",
        type=_number_or_name,
        metavar="NUMBER|FOLDER",
        help="how many held-out tasks (those of eval.tasks, or 100); with --harness: a folder of task folders, or an "
        "environment",
    )
    option("--samples", type=int, help="episodes a task (1); pass@k")
    option(
        "--recipe",
        help="take environment, limits and engine settings from this recipe or config.json (those of the run)",
    )
    option("--out", type=Path, help="write the result as JSON")
    option("--rows", type=Path, help="write each episode as a line of JSON")
    option("--fail-under", type=float, help="exit with 1 when the mean reward is below this")
    parser.set_defaults(run=run, loads_models=True, overrides=[])


def run(args: argparse.Namespace) -> int:
    end_like_interrupted()
    words = args.checkpoint
    args.checkpoint = [word for word in words if not OVERRIDE.match(word)]
    args.overrides = [*(word for word in words if OVERRIDE.match(word)), *args.overrides]
    kinds = evaluation_kinds()
    given = sum(map(bool, (args.env, args.harness))) + sum(kind.asked(args) for kind in kinds)
    args.recipe = args.recipe or ("" if given else _own_recipe(args))
    if given > 1 or not (given or args.recipe):
        unknown = [one for one in args.checkpoint[:1] if not given and not Path(one).exists()]
        no_run = f"there is no run {unknown[0]!r} here; " if unknown else ""
        raise ConfigError(
            f"eval: {no_run}give one of {_ways(kinds)}; a run's folder "
            "(runs/NAME), or --recipe RECIPE, needs none, and its own held-out tasks are played"
        )
    if args.thinking:
        args.overrides.append(f"model.chat_template_args.enable_thinking={json.dumps(args.thinking == 'on')}")
    for kind in kinds:
        kind.check(args)
    if bool(args.harness) != isinstance(args.tasks, str):
        raise ConfigError(
            f"eval: --tasks: must be a folder or an environment with --harness, else a number, got {args.tasks!r}"
        )
    from asyncrl.launch.models.local_models import local_model
    from asyncrl.run.checkpoints import newest_of_run

    args.checkpoint = [local_model("checkpoint", newest_of_run(one)) for one in args.checkpoint]
    if asked := [kind for kind in kinds if kind.asked(args)]:
        return asked[0].run(args)
    if len(args.checkpoint) != 1:
        raise ConfigError(" ".join(("eval: one checkpoint at a time", *(kind.several for kind in kinds))))
    return _run_environment(args, args.checkpoint[0], args.samples or 1)


def _ways(kinds: Sequence[EvaluationKind]) -> str:
    """Return the options that say what is played, for a message."""
    *first, last = (
        "--env NAME",
        "--harness NAME",
        *(way for kind in kinds for way in kind.asked_by.values()),
    )
    return f"{', '.join(first)} and {last}"


def _own_recipe(args: argparse.Namespace) -> str:
    """Return the configuration of the checkpoint's own run, "" where it is of none."""
    from asyncrl.run.checkpoints import run_of

    run = run_of(args.checkpoint[0]) if args.checkpoint else None
    return "" if run is None else str(run / "config.json")


def _number_or_name(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _run_environment(args: argparse.Namespace, checkpoint: str, samples: int) -> int:
    from asyncrl.config import apply_override, parse_config
    from asyncrl.evaluation.rows import episode_rows, write_rows
    from asyncrl.import_path import absolute, search_in
    from asyncrl.launch.checks.check import check_evaluation
    from asyncrl.launch.evaluation.evaluate import play_checkpoint, summarize
    from asyncrl.launch.evaluation.fail_under import any_under
    from asyncrl.launch.models.local_models import load_recipe
    from asyncrl.launch.train import describe
    from asyncrl.rollout.elsewhere import PROGRAMS

    fixed = [f"model.path={json.dumps(checkpoint)}"]
    if args.harness:
        harness = _there(args.harness) if args.harness.endswith(".toml") else args.harness
        fixed += [f"env.name={json.dumps(PROGRAMS)}", f"env.config.harness={json.dumps(harness)}"]
        fixed += [f"env.config.tasks={json.dumps(_there(args.tasks))}"]
    elif args.env:
        fixed += [f"env.name={json.dumps(absolute(args.env, Path.cwd()))}"]
    if args.recipe:
        config = load_recipe(args.recipe, [*fixed, *args.overrides])
    else:
        data: dict[str, Any] = {
            "run": {"python_path": [str(Path.cwd())]},
            "engine": {"max_model_len": _context(checkpoint, AGENT_CONTEXT if args.harness else CONTEXT)},
        }
        if args.harness:
            data["rollout"] = {
                "max_tokens_per_turn": max(1, min(AGENT_TURN, data["engine"]["max_model_len"] // 4))
            }
        for override in (*fixed, *args.overrides):
            apply_override(data, override)
        config = parse_config(data)
        search_in(config.run.python_path)
    for note in check_evaluation(config):
        print(f"note: {note}", file=sys.stderr)
    # A known data set stands for the environment that plays it.
    env = config.env.name
    tasks = args.tasks if isinstance(args.tasks, int) else 0
    # A recipe may have its evaluation turned off.
    tasks = tasks or (config.eval.tasks if args.recipe else 0) or TASKS
    with scratch_folder("eval", "logs of this evaluation") as folder:
        groups = play_checkpoint(config, folder, checkpoint, env, tasks, samples)
        if args.rows:
            write_rows(args.rows, episode_rows(groups, samples))
        result = summarize(groups, samples)
    print(describe(result))
    for k, value in result.pass_at.items():
        print(f"pass@{k} {value:.3f}")
    if args.out:
        args.out.write_text(json.dumps(result.to_json(), indent=2) + "\n")
    return int(args.fail_under is not None and any_under({checkpoint: result.mean}, args.fail_under))


def _there(text: str) -> str:
    """Return a file or folder of the current folder by its whole path, and a name as it is."""
    return str(Path(text).absolute()) if Path(text).exists() else text


def _context(checkpoint: str, most: int) -> int:
    """Return the checkpoint's own context length, at most `most`."""
    path = Path(checkpoint) / "config.json"
    if not path.is_file():
        return most
    return min(most, int(json.loads(path.read_text()).get("max_position_embeddings", most)))
