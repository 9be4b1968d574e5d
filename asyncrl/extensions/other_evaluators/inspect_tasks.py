"""Tasks of inspect-ai, played and judged by inspect-ai itself against a checkpoint that asyncrl serves.

A task is one of inspect-evals by its name, or a task file of your own. inspect-ai has an environment of its own, which
the first evaluation makes; inspect-evals, which brings many packages, is only in that of those who name its tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.cache import cache_folder
from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.samples import sample_id
from asyncrl.extensions.other_evaluators.environments import make_environment
from asyncrl.extensions.other_evaluators.programs import play_by
from asyncrl.types import FailureClass

PREFIX = "inspect/"
"""How `asyncrl eval --on` names a task of inspect-ai."""
VERSION = "0.3.285"
EVALS_VERSION = "0.26.0"
PACKAGES = (f"inspect-ai=={VERSION}", "openai")
EVALS = (*PACKAGES, f"inspect-evals=={EVALS_VERSION}")
MAIN = Path(__file__).with_name("inspect_main.py")


@dataclass(frozen=True, slots=True)
class Asked:
    """What inspect-ai is asked for."""

    tasks: Mapping[str, str]
    """What names each task to inspect-ai, by its name in `--on`."""
    limit: int | None = None
    """The first samples of each task; None for all."""
    samples: int = 1
    """Answers to each, inspect-ai's epochs."""
    max_tokens: int | None = None
    """Of an answer; None for the task's own."""
    temperature: float | None = None
    """Of the answers; None for the task's own."""

    @property
    def own(self) -> bool:
        """Whether all tasks are files of one's own, for which inspect-evals is not needed."""
        return all(".py" in spec for spec in self.tasks.values())


def task_spec(name: str) -> str:
    """Return what names a task to inspect-ai: the absolute path of a file, or the package's own name.

    name: as in `--on`, `inspect/FILE.py`, `inspect/FILE.py@TASK` or `inspect/NAME`. Raises `ConfigError` where there is
    no such file.
    """
    given = name.removeprefix(PREFIX)
    file, at, task = given.partition("@")
    if not file.endswith(".py"):
        return f"inspect_evals/{given}"
    if not Path(file).is_file():
        raise ConfigError(f"--on {name}: there is no file {file!r}")
    return f"{Path(file).absolute()}{at}{task}"


def inspect_python(asked: Asked) -> Path:
    """Return the interpreter that has what is asked for, made by the first evaluation. Raises as `make_environment`."""
    name, packages = ("inspect", PACKAGES) if asked.own else ("inspect-evals", EVALS)
    return make_environment(packages, cache_folder() / "environments" / name)


def play(asked: Asked, python: Path, checkpoint: str, config: Config, folder: Path) -> list[dict[str, Any]]:
    """Return what inspect-ai says of each sample and epoch, see `play_by`. Raises `InfrastructureError`."""
    request = {
        "tasks": dict(asked.tasks),
        "limit": asked.limit,
        "samples": asked.samples,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
    }
    return play_by("inspect-ai", MAIN, python, checkpoint, config, folder, request)


def rows(said: Sequence[Mapping[str, Any]], checkpoint: str) -> Iterator[dict[str, Any]]:
    """Yield a sample for each line, as `samples.jsonl` has those of suites.

    A sample's verdict is that of the task's first scorer, where its metric is `accuracy`: right is 1, and an answer
    that is partly right is not. Other scores are rewards without a verdict, and components all of them. A sample that
    raised has no score, and failed as the environment's.
    """
    for one in said:
        task = f"{one['task']}-{one['id']}"
        failed = bool(one["error"]) or one["reward"] is None
        reward = 0.0 if failed else float(one["reward"])
        yield {
            "id": sample_id(checkpoint, task, one["epoch"] - 1),
            "checkpoint": checkpoint,
            "part": one["task"],
            "tags": [],
            "difficulty": None,
            "env": "inspect-ai",
            "task": task,
            "sample": one["epoch"] - 1,
            "reward": reward,
            "success": reward == 1.0 if one["verdict"] and not failed else None,
            "status": "failed" if failed else "truncated" if one["limit"] else "finished",
            "failure": str(FailureClass.ENVIRONMENT) if failed else None,
            "turns": one["turns"],
            "tokens": one["tokens"],
            "read_tokens": one["read_tokens"],
            "components": one["components"],
            "wall_s": one["wall_s"],
            "error": one["error"] or ("no scorer has scored it" if failed else one["limit"]),
            "extracted": one["answer"] or None,
            "messages": one["messages"],
        }
