"""Benchmarks of lm-eval, played and judged by lm-eval itself against a checkpoint that asyncrl serves.

lm-eval has an environment of its own, which the first evaluation makes: it asks for packages that do not fit beside
those of asyncrl, whose other packages it borrows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.cache import cache_folder
from asyncrl.config import Config
from asyncrl.extensions.benchmarks.samples import sample_id
from asyncrl.extensions.other_evaluators.environments import make_environment
from asyncrl.extensions.other_evaluators.programs import play_by

PREFIX = "lm-eval/"
"""How `asyncrl eval --on` names a task of lm-eval."""
VERSION = "0.4.13"
PACKAGES = (f"lm-eval[api,ifeval]=={VERSION}",)
MAIN = Path(__file__).with_name("lm_eval_main.py")
SHARES = ("exact_match", "acc", "pass@1")
"""Metrics of lm-eval that say whether an answer is right, in the order in which one is taken for the score."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What lm-eval is asked for."""

    tasks: Mapping[str, Mapping[str, str]]
    """Files by split ("test", "train") of each task; empty for those of the hub."""
    limit: int | None = None
    """The first questions of each task; None for all."""
    fewshot: int | None = None
    """Examples before each question; None for the task's own number."""
    chat: bool = False
    """Whether questions are put into the chat template."""
    include: str = ""
    """Folder of further tasks."""
    seed: int = 0


def lm_eval_python() -> Path:
    """Return the interpreter of lm-eval's environment, made by the first evaluation. Raises as `make_environment`."""
    return make_environment(PACKAGES, cache_folder() / "environments" / "lm-eval")


def play(asked: Asked, python: Path, checkpoint: str, config: Config, folder: Path) -> list[dict[str, Any]]:
    """Return what lm-eval says of each question and filter, see `play_by`. Raises `InfrastructureError`."""
    request = {
        "tasks": {name: dict(files) for name, files in asked.tasks.items()},
        "limit": asked.limit,
        "fewshot": asked.fewshot,
        "chat": asked.chat,
        "include": asked.include,
        "seed": asked.seed,
    }
    return play_by("lm-eval", MAIN, python, checkpoint, config, folder, request)


def rows(said: list[dict[str, Any]], checkpoint: str) -> Iterator[dict[str, Any]]:
    """Yield a sample for each question, as `samples.jsonl` has those of suites.

    A question's verdict is that of the task's first filter; those of others are components, named METRIC,FILTER. A task
    whose metrics are no shares of right answers has its first metric as reward, and no verdict.
    """
    by_question: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in said:
        by_question.setdefault((one["task"], one["doc"]), []).append(one)
    for (task, doc), filtered in by_question.items():
        first = filtered[0]
        part = f"{PREFIX}{task}"
        metric = next((name for name in SHARES if name in first["metrics"]), "")
        reward = first["metrics"].get(metric, next(iter(first["metrics"].values()), 0.0))
        chosen = first["filtered"][0] if len(first["filtered"]) == 1 else ""
        yield {
            "id": sample_id(checkpoint, f"{part}-{doc}", 0),
            "checkpoint": checkpoint,
            "part": part,
            "tags": [],
            "difficulty": None,
            "env": "lm-eval",
            "task": f"{part}-{doc}",
            "sample": 0,
            "reward": reward,
            "success": reward == 1.0 if metric else None,
            "status": "finished",
            "failure": None,
            "turns": 1,
            "tokens": 0,
            "components": {
                f"{name},{one['filter']}": value for one in filtered for name, value in one["metrics"].items()
            },
            "wall_s": None,
            "error": "",
            "extracted": chosen or None,
            "messages": [
                {"role": "user", "content": first["prompt"]},
                {"role": "assistant", "content": "\n".join(first["responses"])},
            ],
        }
