"""`asyncrl eval CHECKPOINT... --on lm-eval/TASK,...`: lm-eval plays and judges, asyncrl serves and reports."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from asyncrl.commands.eval_suite import report
from asyncrl.config import Config, apply_override, parse_config
from asyncrl.errors import ConfigError
from asyncrl.evaluation.samples import RECORD, SampleFile, add_checkpoint, read_record
from asyncrl.jsonfile import write_json
from asyncrl.launch.checks.check import check_model
from asyncrl.launch.evaluation.lm_eval import PREFIX, VERSION, Asked, lm_eval_python, play, rows
from asyncrl.run.model_folder import context_length, fingerprint

LONGEST_CONTEXT = 4096
"""Tokens of the context at most: few examples and answers need more."""


def run_lm_eval(args: argparse.Namespace, sets: dict[str, str]) -> int:
    """Evaluate checkpoints on tasks of lm-eval. Raises `ConfigError` and what ends an evaluation."""
    asked = _asked(args, sets)
    configs = {checkpoint: _config(checkpoint, args) for checkpoint in args.checkpoint}
    for checkpoint, config in configs.items():
        check_model("checkpoint", checkpoint, config, policy=False)
    python = lm_eval_python()
    name = "_".join(name.replace("/", "-") for name in sets)[:100]
    folder = args.out or Path("evals") / name
    suite = {
        "name": name,
        "version": 1,
        "description": f"lm-eval {VERSION}, with prompts, examples, answers and metrics of its tasks.",
        "samples": 1,
        "temperature": None,
        "limit": asked.limit,
        "fewshot": asked.fewshot,
        "chat": asked.chat,
        "parts": {one: {"set": one, "env": f"lm-eval {VERSION}"} for one in sets},
    }
    record = read_record(folder, suite)
    if record is None:
        record = {"suite": suite, "tasks": {}, "checkpoints": {}}
        # An evaluation that fails leaves logs, and goes on when its command is given again.
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RECORD, record)
    file = SampleFile(folder)
    try:
        for number, (checkpoint, config) in enumerate(configs.items(), 1):
            settings = {"files": fingerprint(checkpoint), "engine": config.engine.model_dump(mode="json")}
            add_checkpoint(folder, record["checkpoints"], checkpoint, settings)
            if any(row["checkpoint"] == checkpoint for row in file.rows):
                continue
            answers = play(asked, python, checkpoint, config, folder / "work" / str(number))
            for part in sets:
                task = part.removeprefix(PREFIX)
                found = {one["doc"]: one["hash"] for one in answers if one["task"] == task}
                if not found:
                    raise ConfigError(f"--on {part}: is a group of tasks; name those of them that you want")
                listed = [[str(doc), doc, "heldout", {"hash": digest}] for doc, digest in found.items()]
                if record["tasks"].setdefault(part, listed) != listed:
                    raise ConfigError(
                        f"--out {folder}: holds an evaluation on other tasks; give another folder"
                    )
            write_json(folder / RECORD, record)
            file.append(rows(answers, checkpoint))
        result = {**suite, "suite": name, "tasks": sum(map(len, record["tasks"].values()))}
        return report(args, folder, result, file.rows, list(record["checkpoints"]))
    finally:
        file.close()


def _asked(args: argparse.Namespace, sets: dict[str, str]) -> Asked:
    tasks = {}
    for name, file in sets.items():
        if not name.startswith(PREFIX):
            raise ConfigError(
                f"--on: {name!r} is no task of lm-eval; give data sets and tasks of lm-eval in a command each: "
                "`asyncrl leaderboard` puts them on one page"
            )
        files = {"test": file, **({"train": args.examples} if args.examples else {})} if file else {}
        for one in files.values():
            if not Path(one).is_file():
                raise ConfigError(f"--on {name}: there is no file {one!r}")
        tasks[name.removeprefix(PREFIX)] = {split: str(Path(one).absolute()) for split, one in files.items()}
    return Asked(tasks, args.limit, args.fewshot, args.chat, args.include or "")


def _config(checkpoint: str, args: argparse.Namespace) -> Config:
    length = min(context_length(checkpoint) or LONGEST_CONTEXT, LONGEST_CONTEXT)
    data: dict[str, Any] = {"engine": {"max_model_len": length}}
    for override in (
        f"model.path={json.dumps(checkpoint)}",
        "env.name=gridworld",
        *args.overrides,
    ):
        apply_override(data, override)
    return parse_config(data)
