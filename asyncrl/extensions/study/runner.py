"""Makes the runs of a study that have no record yet, on as few engines as their settings allow.

An engine takes longer to start than a short run takes to train, so runs that serve one model in one way share one, one
after the other; others have their own. A study that was interrupted continues where it stopped; a run
that failed is made again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby, product
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import AsyncRLError, ConfigError
from asyncrl.extensions.study.attached_run import AttachedRun, SharedEngine, may_share
from asyncrl.extensions.study.records import StudyRecords, measured, start_of, value_of
from asyncrl.extensions.study.study_file import Study, StudyRun, study_run, tuning_runs
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder
from asyncrl.scratch import scratch_folder

Say = Callable[[str], None]


def check_study(study: Study) -> None:
    """Raise `ConfigError` for the first run of a study that could not start."""
    untuned = study.tuned()[0]
    for condition, method in product(study.conditions, study.methods):
        run = study_run(study, method, condition, 0, untuned)
        config = run.config()
        if not config.eval.tasks:
            raise ConfigError("eval.tasks: a study compares held-out success, so it must be above 0, got 0")
        if study.lower_is_better and not config.eval.every:
            raise ConfigError(
                f"eval.every: measure = {study.measure!r} needs evaluations while a run trains; set it above 0"
            )
    for run in tuning_runs(study):
        run.config()


def make_runs(study: Study, records: StudyRecords, methods: Collection[str], say: Say) -> None:
    """Make the runs of `methods`: those of the tuning, then with what it has chosen those that are compared.

    What fails in a single run is its record. Raises `AsyncRLError` when an engine does not start.
    """
    for runs in (tuning_runs, lambda study: compared_runs(study, records)):
        _make_missing([run for run in runs(study) if run.method in methods], records, say)


def compared_runs(study: Study, records: StudyRecords) -> list[StudyRun]:
    """Return the runs that the study compares, with the tuned values as far as they can be chosen already."""
    return [
        study_run(study, method, condition, seed, tuned)
        for condition, method in product(study.conditions, study.methods)
        if (tuned := chosen(study, records, method, condition)) is not None
        for seed in range(study.seeds)
    ]


def chosen(study: Study, records: StudyRecords, method: str, condition: str) -> Mapping[str, Any] | None:
    """Return the tuned values of a method: those with the best mean; the first of equals. None before they are known.

    Where success is compared, a run that failed counts as 0; else it is worse than any other.
    """
    combinations = study.tuned()
    if len(combinations) == 1:
        return combinations[0]
    scores = []
    for tuned in combinations:
        made = [
            records.find(run)
            for run in tuning_runs(study)
            if (run.method, run.condition, run.tuned) == (method, condition, tuned)
        ]
        found = [_score(study, record) for record in made if record is not None]
        if len(found) < len(made):
            return None
        scores.append(statistics.fmean(found))
    return combinations[scores.index(max(scores))]


def _score(study: Study, record: Mapping[str, Any]) -> float:
    """Return how good a run of the tuning is: higher is better."""
    if "error" in record:
        return 0.0 if study.measure == "success" else float("-inf")
    value = value_of(record, study)
    if not study.lower_is_better:
        return float("-inf") if value is None else value
    success: float = record["held_out"][-1]["success"]
    # Whoever has not reached the target is worse than all that have, and judged by how near it came.
    return -1e18 * (1 - success) if value is None else -value


def _make_missing(runs: Iterable[StudyRun], records: StudyRecords, say: Say) -> None:
    missing = [(run, run.config()) for run in runs if not records.done(run)]
    # Runs of one seed follow each other: what else the machine does is then shared by methods that are compared.
    missing.sort(key=lambda one: (_engine_settings(one[1]), one[0].seed))
    made, start = 0, time.monotonic()
    for _, sharing in groupby(missing, key=lambda one: _engine_settings(one[1])):
        group = list(sharing)
        with scratch_folder("study") as folder:
            shared = None
            if may_share(group[0][1]):
                say(f"starting an engine for {len(group)} runs")
                shared = SharedEngine(group[0][1], folder / "engine")
            try:
                for run, _ in group:
                    left_s = (time.monotonic() - start) / made * (len(missing) - made) if made else None
                    say(_line(run, made, len(missing), left_s))
                    record = _make(run, shared)
                    records.append(record)
                    if "error" in record:
                        say(f"  failed: {record['error'].splitlines()[0]}")
                    else:
                        say(f"  held-out success {record['held_out'][0]['success']:.3f} -> "
                            f"{record['held_out'][-1]['success']:.3f} in {record['wall_s']:.0f} s")  # fmt: skip
                        if others := records.apart(record):
                            say(f"  started from other weights than the run of {', '.join(others)} with this condition "
                                f"and seed, and is not compared with it; without its line in {records.path.name} the "
                                "study makes that run anew")  # fmt: skip
                    made += 1
            finally:
                if shared is not None:
                    shared.stop()


def _make(run: StudyRun, shared: SharedEngine | None) -> dict[str, Any]:
    """Make one run, without `shared` on engines of its own, and return its record; one that fails leaves its error."""
    start = time.monotonic()
    with scratch_folder("study") as folder:
        path = folder / "run"
        try:
            if shared is not None:
                shared.reset()
            with RunFolder(path) as run_folder:
                config = run.config(f"run.folder={json.dumps(str(folder))}")
                made = (
                    TrainRun(config, run_folder)
                    if shared is None
                    else AttachedRun(config, run_folder, shared)
                )
                summary = made.run()
            found = {"start": start_of(made.roles.main.model)} | measured(path, summary, run.metric)
        except AsyncRLError as error:
            found = {"error": str(error)[:2000]}
    return {"key": run.key, "wall_s": round(time.monotonic() - start, 1), **found}


def _engine_settings(config: Config) -> str:
    """Return what two runs must have in common to share an engine."""
    data = config.model_dump(mode="json")
    sections = ["model", "engine", "lora", "placement"]
    if config.model.path == "sft":
        # The base model is made from the environment's scripted episodes.
        sections += ["sft", "env"]
    return json.dumps([*(data[section] for section in sections), config.run.threads], sort_keys=True)


def _line(run: StudyRun, made: int, runs: int, left_s: float | None) -> str:
    what = f"run {made + 1}/{runs}: {run.method}"
    what += f", {run.condition}" if run.condition else ""
    what += "".join(f", {key}={value}" for key, value in run.tuned.items())
    return f"{what}, seed {run.seed}" + (f"; about {left_s / 60:.0f} min left" if left_s is not None else "")
