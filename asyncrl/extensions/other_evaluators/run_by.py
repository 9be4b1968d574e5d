"""`asyncrl eval CHECKPOINT... --on PROGRAM/TASK,...`: what evaluations by other programs have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.config import Config, apply_override, parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.reporting import report
from asyncrl.extensions.benchmarks.samples import RECORD, SampleFile, add_checkpoint, read_record
from asyncrl.jsonfile import write_json
from asyncrl.launch.checks.check import check_model
from asyncrl.run.model_folder import context_length, fingerprint

LONGEST_CONTEXT = 4096
"""Tokens of the context at most: few examples and answers need more."""
Listed = Mapping[str, Sequence[Sequence[Any]]]
"""The tasks of each part, as the record of an evaluation has them: id, seed, split and data."""
Play = Callable[[str, Config, Path], tuple[Listed, Sequence[Mapping[str, Any]]]]
"""Plays a checkpoint, with its configuration, in a folder; returns the tasks and the samples."""


def run_by(
    args: argparse.Namespace,
    sets: Mapping[str, str],
    about: Mapping[str, Any],
    program: str,
    play: Callable[[], Play],
) -> int:
    """Evaluate checkpoints by another program, and report.

    about: what else decides what is played; its samples are those of a task. program: with its version. play: called
    when all that is asked for was checked, which may install the program. Raises `ConfigError` and what ends an
    evaluation.
    """
    configs = {checkpoint: _config(checkpoint, args) for checkpoint in args.checkpoint}
    for checkpoint, config in configs.items():
        check_model("checkpoint", checkpoint, config, policy=False)
    play_one = play()
    name = "_".join(name.replace("/", "-") for name in sets)[:100]
    folder = args.out or Path("evals") / name
    suite = {
        "name": name,
        "version": 1,
        "samples": 1,
        "temperature": None,
        **about,
        "parts": {one: {"set": one, "env": program} for one in sets},
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
            tasks, samples = play_one(checkpoint, config, folder / "work" / str(number))
            for part, listed in tasks.items():
                if record["tasks"].setdefault(part, listed) != listed:
                    raise ConfigError(
                        f"--out {folder}: holds an evaluation on other tasks; give another folder"
                    )
            write_json(folder / RECORD, record)
            file.append(samples)
        result = {**suite, "suite": name, "tasks": sum(map(len, record["tasks"].values()))}
        return report(
            folder, result, file.rows, list(record["checkpoints"]), args.checkpoint, args.fail_under
        )
    finally:
        file.close()


def refuse_others(sets: Mapping[str, str], prefix: str, program: str) -> None:
    """Raise `ConfigError` where a set is not one of the program's."""
    for name in sets:
        if not name.startswith(prefix):
            raise ConfigError(
                f"--on: {name!r} is no task of {program}; give data sets and tasks of {program} in a command each: "
                "`asyncrl leaderboard` puts them on one page"
            )


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
