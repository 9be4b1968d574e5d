"""A study's records: one line of a JSON lines file for each run that has ended."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from asyncrl.buffer.store import LEDGER
from asyncrl.errors import InputError
from asyncrl.extensions.curriculum.lease_hook import predictions
from asyncrl.extensions.study.study_file import Study, StudyRun
from asyncrl.launch.evaluation.periodic_evaluation import read_evals
from asyncrl.run.folder import POLICIES
from asyncrl.run.metrics import read_metrics
from asyncrl.textfile import parse_lines
from asyncrl.weights.chunks import file_checksum, joined_checksum

CURVE = {
    "reward": "reward/mean",
    "staleness": "staleness/mean",
    "ess": "ess/sequence",
    "clip_fraction": "clip_fraction",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
}
"""What a record keeps of each step, and the metric that has it."""


class StudyRecords:
    """The records of a study. What is appended is on disk when the call returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        records = parse_lines(path.read_bytes()) if path.exists() else []
        self._found = {_key(record["key"]): record for record in records}

    def find(self, run: StudyRun) -> dict[str, Any] | None:
        """Return the record of a run that has ended, the last one where it was made again."""
        return self._found.get(_key(run.key))

    def done(self, run: StudyRun) -> bool:
        """False for a run that has failed, too: it is made again."""
        record = self.find(run)
        return record is not None and "error" not in record

    def apart(self, record: Mapping[str, Any]) -> list[str]:
        """Return the methods whose run of the same condition and seed started from other weights than a record's run:
        none of them is paired with it."""
        same = ("condition", "seed")
        return sorted({
            other["key"]["method"]
            for other in self._found.values()
            if "error" not in other
            and all(other["key"][name] == record["key"][name] for name in same)
            and other.get("start", "") != record.get("start", "")
        })  # fmt: skip

    def append(self, record: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._found[_key(record["key"])] = record


def measured(folder: Path, summary: Mapping[str, Any], metric: str = "") -> dict[str, Any]:
    """Return what a record keeps of a finished run with held-out evaluations.

    `held_out` and `steps` are lists over time. Rollouts and tokens are all that had been sampled until then, those of
    dropped groups included; seconds are of training, without the evaluations. `metric` is kept of each step, too; as
    `policies/NAME/METRIC` it is that of a further policy's step of this number.
    `predictions` has a pair for each group that a curriculum proposed: predicted and realised share of successes;
    without a curriculum there is no such key. Raises `InputError` if no step has the metric.
    """
    steps = []
    names: set[str] = set()
    seconds = 0.0
    curve = CURVE | ({metric: metric} if metric else {})
    others = _of_policy(folder, metric)
    for step in read_metrics(folder):
        step = step | others.get(step["step"], {})
        seconds += step["time/wait_s"] + step["time/train_s"] + step["time/publish_s"]
        names |= step.keys()
        # A step's number is that of the version it has made.
        passed = {
            "version": step["step"],
            "rollouts": int(step["buffer/episodes"]),
            "tokens": int(step["buffer/tokens_generated"]),
            "seconds": round(seconds, 2),
        }
        kept = {name: _number(step.get(known)) for name, known in curve.items()}
        steps.append(passed | {name: value for name, value in kept.items() if value is not None})
    if metric and not any(metric in step for step in steps):
        near = get_close_matches(metric, sorted(names), cutoff=0.3)
        raise InputError(f"metric: no step has a number {metric!r}; near: {', '.join(near) or 'none'}")
    nothing = {"version": 0, "rollouts": 0, "tokens": 0, "seconds": 0.0}
    places = {step["version"]: {name: step[name] for name in nothing} for step in steps} | {0: nothing}
    evals = [
        (0, summary["eval_before"]),
        *((found["version"], found) for found in read_evals(folder) if "error" not in found),
        (steps[-1]["version"] if steps else 0, summary["eval_after"]),
    ]
    predicted = [[round(one, 4) for one in pair] for pair in predictions(folder / LEDGER)]
    return {
        "held_out": [places[version] | {"success": success_of(found)} for version, found in evals],
        "tasks": summary["eval_after"]["tasks"],
        "staleness_mean": round(summary["staleness"]["mean"], 3),
        "staleness_max": summary["staleness"]["max"],
        "steps": steps,
        **({"predictions": predicted} if predicted else {}),
    }


def _of_policy(folder: Path, metric: str) -> dict[int, dict[str, Any]]:
    """Return the numbers of the policy that a metric is of, by step, each under `policies/NAME/METRIC`; none of the
    recipe's own. Raises `InputError` for a policy that the run has not."""
    if not metric.startswith(f"{POLICIES}/"):
        return {}
    name = metric.split("/")[1]
    if not (folder / POLICIES / name).is_dir():
        raise InputError(f"metric: {metric!r} is of policy {name!r}, which the run has not")
    return {
        step["step"]: {f"{POLICIES}/{name}/{key}": value for key, value in step.items()}
        for step in read_metrics(folder / POLICIES / name)
    }


@functools.cache
def start_of(model: str) -> str:
    """Return a checksum of the weights that a run starts from; "" for a model that is no folder of such files.

    A base model that is trained anew is not the same bit by bit on every CPU.
    """
    files = sorted(Path(model).glob("*.safetensors"))
    return joined_checksum([bytes.fromhex(file_checksum(file)) for file in files])[:12] if files else ""


def success_of(evaluation: Mapping[str, Any]) -> float:
    """Return an evaluation's success rate, or its mean reward where the environment gives no verdict."""
    success = evaluation.get("success")
    return float(evaluation["mean"] if success is None else success)


def value_of(record: Mapping[str, Any], study: Study) -> float | None:
    """Return what a study compares of a run: success after training, the mean of its metric over the last fifth of the
    steps, or how much training it took until an evaluation reached the target; None for a run that has no such value.
    """
    if study.measure == "success":
        return float(record["held_out"][-1]["success"])
    if study.measure == "metric":
        steps = record["steps"]
        last = [step[study.metric] for step in steps[-max(1, len(steps) // 5) :] if study.metric in step]
        return statistics.fmean(last) if last else None
    return next(
        (float(one[study.measure]) for one in record["held_out"] if one["success"] >= study.target), None
    )


def mean_over_steps(record: Mapping[str, Any], name: str) -> float | None:
    """Return the mean of one of `CURVE` over the steps that have it, or None."""
    values = [step[name] for step in record["steps"] if name in step]
    return statistics.fmean(values) if values else None


def _number(value: Any) -> float | None:
    return float(f"{value:.5g}") if isinstance(value, int | float) else None


def _key(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
