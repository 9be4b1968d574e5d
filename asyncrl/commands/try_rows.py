"""`asyncrl try RECIPE [key=value ...] [--rows N]`"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from asyncrl.commands.scratch_folder import scratch_folder
from asyncrl.errors import ConfigError
from asyncrl.signals import end_like_interrupted

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers
    from asyncrl.types import Group

ROWS = 4
CHARACTERS = 4000
"""The characters of a text that is shown, unless all of it is asked for."""


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "try",
        help="play a few rows or tasks of a recipe, and show prompts, answers and rewards; train nothing",
        description="Play a few tasks of a recipe with its model and settings. Prompt, answer, what was taken as the "
        "answer, and reward of each are printed. Nothing is trained, and no run folder is left.",
    )
    parser.add_argument(
        "recipe", help="a TOML file, a folder with recipe.toml, or a name that `asyncrl recipes` lists"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, such as data.train=my.jsonl"
    )
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"how many (default {ROWS})")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="answers to each (default 1)")
    parser.add_argument("--heldout", action="store_true", help="held-out rows instead of those to train on")
    parser.add_argument("--whole", action="store_true", help="show long texts whole")
    parser.set_defaults(run=run, loads_models=True)


def run(args: argparse.Namespace) -> int:
    from asyncrl.launch.checks.check import check_evaluation
    from asyncrl.launch.evaluation.evaluate import play_tasks
    from asyncrl.launch.models.local_models import load_recipe
    from asyncrl.launch.models.start_model import start_model
    from asyncrl.launch.reports.samples import FirstSamples, chosen_rows
    from asyncrl.tasks.data_rows import has_rows, rows_of
    from asyncrl.tasks.tasks import tasks_of

    for option, value in (("--rows", args.rows), ("--samples", args.samples)):
        if value < 1:
            raise ConfigError(f"try: {option} must be at least 1, got {value}")
    end_like_interrupted()
    split = "heldout" if args.heldout else "train"
    config = load_recipe(args.recipe, args.overrides)
    for line in check_evaluation(config, split, "model.path"):
        print(line, file=sys.stderr)
    tasks = chosen_rows(tasks_of(config, split), args.rows)
    if has_rows(config):
        for note in rows_of(config).notes:
            print(f"data: {note}", file=sys.stderr)
    model = start_model(config)
    # As in training, and not as in an evaluation.
    sampled = config.eval.model_copy(update={"temperature": config.rollout.temperature})
    shown = FirstSamples(print, len(tasks) * args.samples, 0 if args.whole else CHARACTERS)
    with scratch_folder("try") as folder:
        groups = play_tasks(
            config.model_copy(update={"eval": sampled}), folder, model, tasks, args.samples, shown.see
        )
    print(_summary(groups))
    return 0


def _summary(groups: list[Group]) -> str:
    """Return one line about what was played."""
    played = [t for group in groups for t in group.trajectories]
    judged = [t for t in played if t.failure is None]
    if not judged:
        return f"{len(played)} samples, all of which failed"
    mean = sum(t.reward for t in judged) / len(judged)
    cut = sum(t.status == "truncated" for t in judged)
    parts = [f"{len(judged)} samples of {len(groups)} tasks: mean reward {mean:.3f}"]
    if cut:
        parts.append(f"{cut} cut off by rollout.max_tokens_per_turn or engine.max_model_len")
    if len(judged) < len(played):
        parts.append(f"{len(played) - len(judged)} more failed")
    return "; ".join(parts)
