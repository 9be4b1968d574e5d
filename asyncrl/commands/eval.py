"""`asyncrl eval CHECKPOINT` on an environment, on data sets by name, on a suite, or as an agent program plays it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.commands.eval_sets import MAX_TOKENS, check_least, run_sets
from asyncrl.commands.scratch_folder import scratch_folder
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import Row, by_name, rows
from asyncrl.signals import end_like_interrupted

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

TASKS = 100
"""Held-out tasks that are played where neither --tasks nor the recipe says how many."""
CONTEXT, AGENT_CONTEXT = 4096, 65536
"""The longest context without a recipe, in tokens; that of an agent program holds its own long prompt."""
AGENT_TURN = 4096
NOT_BY_ALL = (
    *("tasks", "rows", "recipe", "trained_on", "samples", "max_tokens", "temperature"),
    *("most_thinking", "least_thinking", "price"),
)
"""Options that another program follows only where its row says so."""
NOT_GIVEN: tuple[object, ...] = (None, "", [])
"""Values of options that were left out."""
OVERRIDE = re.compile(r"[a-z_]+(\.\w+)+=")


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="evaluate a run on its own held-out tasks, or checkpoints on a suite, data sets or an environment",
        description="Of a run's folder or checkpoint alone, its own held-out tasks are played with its own settings. "
        "Mean reward, success and pass@k with intervals clustered by task. Failures of the environment "
        "or the infrastructure are counted apart and never enter a rate. With --suite or --on several checkpoints are "
        "compared; an evaluation that was stopped goes on when its command is given again.",
    )
    parser.add_argument(
        "checkpoint",
        nargs="+",
        metavar="CHECKPOINT",
        help="a Hugging Face model folder, a hub name, or a run's folder for its newest checkpoint; several with "
        "--suite; then settings as key=value",
    )
    parser.add_argument("--env", help="environment name or import path")
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
        "--thinking",
        choices=("on", "off"),
        help="whether the model thinks first, where its chat template knows of it",
    )
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
        "--harness", metavar="NAME|FILE", help="an agent program that plays, by name or TOML file"
    )
    parser.add_argument(
        "--tasks",
        type=_number_or_name,
        metavar="NUMBER|FOLDER",
        help="how many held-out tasks (those of eval.tasks, or 100); with --harness: a folder of task folders, or an "
        "environment",
    )
    parser.add_argument("--samples", type=int, help="episodes a task (1), not with --suite; pass@k")
    parser.add_argument(
        "--recipe",
        help="take environment, limits and engine settings from this recipe or config.json (those of the run)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="with --suite and --on the folder of the evaluation (evals/NAME); otherwise write the result as JSON",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        help="write each episode as a line of JSON, for `asyncrl compare`; not with --suite and --on",
    )
    parser.add_argument(
        "--trained-on",
        action="append",
        default=[],
        metavar="FILE|SET",
        help="with --suite and --on: training data that the report looks for in the tasks, beside that of the runs "
        "that the checkpoints are of; may be repeated",
    )
    parser.add_argument(
        "--fail-under",
        type=float,
        help="exit with 1 when the mean reward, or the score of any checkpoint on a suite, is below this",
    )
    parser.set_defaults(run=run, loads_models=True, overrides=[])


def run(args: argparse.Namespace) -> int:
    end_like_interrupted()
    words = args.checkpoint
    args.checkpoint = [word for word in words if not OVERRIDE.match(word)]
    args.overrides = [*(word for word in words if OVERRIDE.match(word)), *args.overrides]
    args.recipe = args.recipe or _own_recipe(args)
    if (given := sum(map(bool, (args.env, args.suite, args.on, args.harness)))) > 1 or not (
        given or args.recipe
    ):
        unknown = [one for one in args.checkpoint[:1] if not given and not Path(one).exists()]
        no_run = f"there is no run {unknown[0]!r} here; " if unknown else ""
        raise ConfigError(
            f"eval: {no_run}give one of --env NAME, --harness NAME, --suite NAME and --on SET; a run's folder "
            "(runs/NAME), or --recipe RECIPE, needs none, and its own held-out tasks are played"
        )
    if args.thinking:
        args.overrides.append(f"model.chat_template_args.enable_thinking={json.dumps(args.thinking == 'on')}")
    for option in ("limit", "max_tokens", "temperature", "most_thinking", "least_thinking", "price"):
        if getattr(args, option) not in (None, []) and not args.on:
            raise ConfigError(f"eval: --{option.replace('_', '-')} goes with --on")
    if bool(args.harness) != isinstance(args.tasks, str):
        raise ConfigError(
            f"eval: --tasks: must be a folder or an environment with --harness, else a number, got {args.tasks!r}"
        )
    from asyncrl.launch.models.local_models import local_model
    from asyncrl.run.checkpoints import newest_of_run

    args.checkpoint = [local_model("checkpoint", newest_of_run(one)) for one in args.checkpoint]
    program = _program(args.on or "")
    for row in rows("evaluators"):
        for option in row.options:
            if row is not program and getattr(args, _name(option)) not in NOT_GIVEN:
                raise ConfigError(f"eval: {option} goes with --on {row.name}/TASK")
    if program:
        return _run_other(args, program)
    if args.on:
        return run_sets(args, _sets(args.on))
    if args.suite:
        from asyncrl.commands.eval_suite import run_suite
        from asyncrl.evaluation.suite import load_suite

        for option in ("tasks", "samples", "rows"):
            if getattr(args, option) is not None:
                raise ConfigError(
                    f"eval: --{option} goes with --env or a run; a suite says itself what is played"
                )
        return run_suite(args, load_suite(args.suite))
    if len(args.checkpoint) != 1:
        raise ConfigError(
            "eval: one checkpoint at a time without --suite and --on; `asyncrl compare` compares the --rows of several"
        )
    return _run_environment(args, args.checkpoint[0], args.samples or 1)


def _own_recipe(args: argparse.Namespace) -> str:
    """Return the configuration of the checkpoint's own run where nothing else says what is played, else ""."""
    from asyncrl.run.checkpoints import run_of

    if args.env or args.suite or args.on or args.harness:
        return ""
    run = run_of(args.checkpoint[0]) if args.checkpoint else None
    return "" if run is None else str(run / "config.json")


def _number_or_name(text: str) -> int | str:
    return int(text) if text.isdigit() else text


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


def _run_environment(args: argparse.Namespace, checkpoint: str, samples: int) -> int:
    from asyncrl.config import apply_override, parse_config
    from asyncrl.evaluation.rows import episode_rows, write_rows
    from asyncrl.evaluation.suite import PROGRAMS
    from asyncrl.import_path import absolute, search_in
    from asyncrl.launch.checks.check import check_evaluation
    from asyncrl.launch.evaluation.evaluate import play_checkpoint, summarize
    from asyncrl.launch.evaluation.reporting import any_under
    from asyncrl.launch.models.local_models import load_recipe
    from asyncrl.launch.train import describe

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
