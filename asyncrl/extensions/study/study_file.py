"""What a study compares: a TOML file, checked as a whole before anything starts.

    title = "Staleness limits by method"
    recipe = "gridworld_grpo"
    baseline = "grpo"

    [settings]                        # of every run, as in a recipe
    train.num_steps = 24

    [conditions.limit-4]              # methods are compared within each; a `recipe` of its own is allowed
    buffer.max_staleness = 4

    [methods.grpo]
    algo.preset = "grpo"
    [methods.decoupled]
    algo.preset = "decoupled_ppo"

    [tuning]                          # values that each method chooses for itself, on seeds of their own
    values = { "train.learning_rate" = [2e-4, 4e-4, 8e-4] }

The runs of a study are methods x conditions x seeds, after those of the tuning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from asyncrl.config import Config, with_files_in
from asyncrl.config_checks import check_objective
from asyncrl.config_problems import explain_problems
from asyncrl.config_sections import Section
from asyncrl.errors import ConfigError
from asyncrl.launch.models.local_models import load_recipe
from asyncrl.textfile import read_toml

TUNING_SEED = 1000
"""The first seed of the tuning: a method is not judged on the seeds it was tuned on."""
Settings = dict[str, dict[str, Any]]
"""Sections with their keys, as in a recipe."""


class Tuning(Section):
    """The values that are tried before the comparison, for each method under each condition."""

    values: dict[str, list[Any]] = Field(default_factory=dict)
    """Keys with the values to try; several keys are tried in all combinations."""
    seeds: int = Field(1, ge=1)
    """Runs of each combination; the best mean is chosen."""


class Study(Section):
    """A whole study."""

    title: str
    claim: str = ""
    """What is claimed, and by whom."""
    finding: str = ""
    """What came out, written once the runs have been made."""
    recipe: str
    """The recipe that all runs start from."""
    seeds: int = Field(5, ge=1)
    """Runs of each method under each condition, with the seeds 0, 1, ..."""
    baseline: str = ""
    """The method that the others are compared with, seed by seed; empty for the first."""
    measure: Literal["success", "metric", "rollouts", "tokens", "seconds"] = "success"
    """What is compared: held-out success after training (the reward where an environment gives no verdict), a metric of
    the last steps, or how much training it takes until an evaluation has reached `target`."""
    metric: str = ""
    """A name in `metrics.jsonl`, of which more is better; for the measure `metric`. `policies/NAME/METRIC` is one of a
    further policy."""
    target: float = 0.0
    """Held-out success to be reached; for `rollouts`, `tokens` and `seconds`, with `eval.every` above 0."""
    compare_seconds: bool = False
    """Also compare the seconds of training, seed by seed: of runs that one machine made alike."""
    settings: Settings = Field(default_factory=dict)
    """The settings of all runs."""
    conditions: dict[str, dict[str, Any]] = Field(default={"": {}})
    """Settings under which the methods are compared, by name; one may name a `recipe` of its own."""
    methods: dict[str, Settings] = Field(min_length=1)
    """Settings of each method, by name."""
    tuning: Tuning = Tuning()
    _folder: str = PrivateAttr("")

    @model_validator(mode="after")
    def _fits(self) -> Study:
        if self.baseline and self.baseline not in self.methods:
            raise ValueError(
                f"baseline: there is no method {self.baseline!r}; allowed: {', '.join(self.methods)}"
            )
        if bool(self.metric) != (self.measure == "metric"):
            raise ValueError(
                f"metric: measure = 'metric' names a metric, and no other measure does; got {self.metric!r} with "
                f"measure = {self.measure!r}"
            )
        if self.lower_is_better and not self.target:
            raise ValueError(f"target: measure = {self.measure!r} needs the held-out success to be reached")
        return self

    @property
    def folder(self) -> str:
        """The folder of the study's file; "" where it has none."""
        return self._folder

    @property
    def compared_with(self) -> str:
        """The name of the baseline."""
        return self.baseline or next(iter(self.methods))

    @property
    def lower_is_better(self) -> bool:
        """True for what it takes until `target` is reached."""
        return self.measure not in ("success", "metric")

    def tuned(self) -> list[dict[str, Any]]:
        """Return the combinations of values to be tried; a single empty one without a tuning."""
        keys = list(self.tuning.values)
        return [dict(zip(keys, values, strict=True)) for values in product(*self.tuning.values.values())]


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study."""

    method: str
    condition: str
    seed: int
    tuned: Mapping[str, Any]
    """Keys of the tuning with this run's values."""
    recipe: str
    overrides: tuple[str, ...]
    folder: str = ""
    """The folder of the study's file."""
    metric: str = ""
    """What the study's record keeps of each step beside the usual."""

    @property
    def key(self) -> dict[str, Any]:
        """What tells the run from others of its study, with a digest of its settings, in which files in the study's
        folder are relative to it: records hold wherever the folder is."""
        text = json.dumps([self.recipe, *self.overrides])
        text = relative(text, self.folder)
        return {
            "method": self.method,
            "condition": self.condition,
            "seed": self.seed,
            "tuned": dict(self.tuned),
            "settings": hashlib.sha256(text.encode()).hexdigest()[:12],
            **({"metric": self.metric} if self.metric else {}),
        }

    def config(self, *further: str) -> Config:
        """Return the configuration, with further overrides. Raises `ConfigError`."""
        try:
            config = load_recipe(self.recipe, [*self.overrides, *further])
            check_objective(config)
            return config
        except ConfigError as error:
            where = f"method {self.method!r}" + (f", condition {self.condition!r}" if self.condition else "")
            raise ConfigError(f"{where}: {error}") from error


def relative(text: str, folder: str) -> str:
    """Return text with the paths in a study's folder relative to it."""
    return text.replace(f"{folder}/", "") if folder else text


def read_study(path: Path) -> Study:
    """Read a study's file; files that its settings name are relative to its folder. Raises `ConfigError`."""
    try:
        data = read_toml(path)
        folder = path.absolute().parent
        study = Study.model_validate(_with_files_in(folder, data))
        study._folder = str(folder)
        return study
    except ValidationError as error:
        lines = [f"  {line}" for line in explain_problems(error.errors(), Study).values()]
        raise ConfigError(f"{path}: {len(lines)} problem(s):\n" + "\n".join(lines)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _with_files_in(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return a study's data with the files of its settings, and recipes of its own, made absolute."""
    found = dict(data)
    for name in ("settings", "recipe"):
        if name in data:
            found[name] = with_files_in(folder, data[name])
    for name in ("conditions", "methods"):
        if isinstance(parts := data.get(name), dict):
            found[name] = {part: with_files_in(folder, settings) for part, settings in parts.items()}
    return found


def study_run(study: Study, method: str, condition: str, seed: int, tuned: Mapping[str, Any]) -> StudyRun:
    """Return one run. What comes later changes what came before: settings, condition, method, tuned values, seed."""
    own = dict(study.conditions[condition])
    recipe = own.pop("recipe", study.recipe)
    overrides = [
        *(one for settings in (study.settings, own, study.methods[method]) for one in _overrides(settings)),
        *(f"{key}={json.dumps(value)}" for key, value in tuned.items()),
        f"run.seed={seed}",
    ]
    return StudyRun(method, condition, seed, tuned, recipe, tuple(overrides), study.folder, study.metric)


def tuning_runs(study: Study) -> Iterator[StudyRun]:
    """Yield the runs of the tuning; none where there is nothing to choose."""
    combinations = study.tuned()
    if len(combinations) > 1:
        for condition, method, tuned in product(study.conditions, study.methods, combinations):
            for i in range(study.tuning.seeds):
                yield study_run(study, method, condition, TUNING_SEED + i, tuned)


def _overrides(settings: Mapping[str, Any]) -> Iterator[str]:
    for section, values in settings.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"{section}: must be a section with keys, got {json.dumps(values)}")
        for keys, value in _leaves((section,), values):
            yield f"{'.'.join(keys)}={json.dumps(value)}"


def _leaves(keys: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of nested tables, so that one can change a single value of another's table."""
    for key, value in table.items():
        if (
            isinstance(value, Mapping)
            and value
            and all("." not in name and "=" not in name for name in value)
        ):
            yield from _leaves((*keys, key), value)
        else:
            yield (*keys, key), value
