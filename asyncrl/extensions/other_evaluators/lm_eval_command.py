"""`asyncrl eval CHECKPOINT... --on lm-eval/TASK,...`: lm-eval plays and judges, asyncrl serves and reports."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.other_evaluators.lm_eval import PREFIX, VERSION, Asked, lm_eval_python, play, rows
from asyncrl.extensions.other_evaluators.run_by import Listed, Play, refuse_others, run_by


def run_lm_eval(args: argparse.Namespace, sets: dict[str, str]) -> int:
    """Evaluate checkpoints on tasks of lm-eval. Raises `ConfigError` and what ends an evaluation."""
    asked = _asked(args, sets)
    about = {
        "description": f"lm-eval {VERSION}, with prompts, examples, answers and metrics of its tasks.",
        "limit": asked.limit,
        "fewshot": asked.fewshot,
        "chat": asked.chat,
    }

    def prepared() -> Play:
        python = lm_eval_python()

        def play_one(
            checkpoint: str, config: Config, folder: Path
        ) -> tuple[Listed, Sequence[Mapping[str, Any]]]:
            answers = play(asked, python, checkpoint, config, folder)
            return _tasks(sets, answers), list(rows(answers, checkpoint))

        return play_one

    return run_by(args, sets, about, f"lm-eval {VERSION}", prepared)


def _tasks(sets: Mapping[str, str], answers: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    tasks = {}
    for part in sets:
        name = part.removeprefix(PREFIX)
        found = {one["doc"]: one["hash"] for one in answers if one["task"] == name}
        if not found:
            raise ConfigError(f"--on {part}: is a group of tasks; name those of them that you want")
        tasks[part] = [[str(doc), doc, "heldout", {"hash": digest}] for doc, digest in found.items()]
    return tasks


def _asked(args: argparse.Namespace, sets: dict[str, str]) -> Asked:
    refuse_others(sets, PREFIX, "lm-eval")
    tasks = {}
    for name, file in sets.items():
        files = {"test": file, **({"train": args.examples} if args.examples else {})} if file else {}
        for one in files.values():
            if not Path(one).is_file():
                raise ConfigError(f"--on {name}: there is no file {one!r}")
        tasks[name.removeprefix(PREFIX)] = {split: str(Path(one).absolute()) for split, one in files.items()}
    return Asked(tasks, args.limit, _fewshot(args.fewshot), bool(args.chat), args.include or "")


def _fewshot(given: str | None) -> int | None:
    if given is not None and not given.isdigit():
        raise ConfigError(f"eval: --fewshot: must be a whole number, got {given!r}")
    return None if given is None else int(given)
