"""`asyncrl eval CHECKPOINT... --on inspect/TASK,...`: inspect-ai plays and judges, asyncrl serves and reports."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.other_evaluators.inspect_tasks import (
    EVALS_VERSION,
    PREFIX,
    VERSION,
    Asked,
    inspect_python,
    play,
    rows,
    task_spec,
)
from asyncrl.extensions.other_evaluators.run_by import Listed, Play, refuse_others, run_by


def run_inspect(args: argparse.Namespace, sets: dict[str, str]) -> int:
    """Evaluate checkpoints on tasks of inspect-ai. Raises `ConfigError` and what ends an evaluation."""
    refuse_others(sets, PREFIX, "inspect-ai")
    for name, file in sets.items():
        if file:
            raise ConfigError(
                f"--on {name}={file}: a task of inspect-ai reads its own rows; give inspect/FILE.py@TASK"
            )
    specs = {name: task_spec(name) for name in sets}
    asked = Asked(specs, args.limit, args.samples or 1, args.max_tokens, args.temperature)
    program = f"inspect-ai {VERSION}" + ("" if asked.own else f" with inspect-evals {EVALS_VERSION}")
    about = {
        "description": f"{program}, with prompts, solvers and scorers of its tasks.",
        "samples": asked.samples,
        "temperature": asked.temperature,
        "max_tokens": asked.max_tokens,
        "limit": asked.limit,
        # Tasks of one's own may have changed since.
        "task_files": {name: _digest(spec) for name, spec in specs.items() if ".py" in spec},
    }

    def prepared() -> Play:
        python = inspect_python(asked)

        def play_one(
            checkpoint: str, config: Config, folder: Path
        ) -> tuple[Listed, Sequence[Mapping[str, Any]]]:
            said = play(asked, python, checkpoint, config, folder)
            return _tasks(sets, said), list(rows(said, checkpoint))

        return play_one

    return run_by(args, sets, about, program, prepared)


def _tasks(sets: Mapping[str, str], said: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    tasks = {}
    for part in sets:
        found = {one["id"]: one["hash"] for one in said if one["task"] == part}
        if not found:
            raise ConfigError(f"--on {part}: has no samples")
        listed = enumerate(sorted(found.items()))
        tasks[part] = [[name, place, "heldout", {"hash": digest}] for place, (name, digest) in listed]
    return tasks


def _digest(spec: str) -> str:
    file = spec.partition("@")[0]
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
