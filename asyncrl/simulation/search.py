"""Which schedule and which split of the GPUs trains the most groups an hour: all of them are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asyncrl.config import Config, parse_config
from asyncrl.errors import ConfigError, DeadlineError
from asyncrl.simulation.cluster import Outcome, simulate
from asyncrl.simulation.costs import Costs
from asyncrl.simulation.hardware import Gpu, gpu_costs
from asyncrl.simulation.workload import Workload

SCHEDULES = ("synchronous", "one_step_off", "asynchronous", "partial")
TENSOR_PARALLEL = (1, 2, 4, 8)
SPLITS = 8
"""Splits of the GPUs that are tried for each number of GPUs an engine has."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How GPUs are shared out."""

    schedule: str
    trainer_gpus: int
    engines: int
    tensor_parallel: int
    by_turns: bool

    @property
    def gpus(self) -> int:
        """All GPUs that it uses."""
        used = self.engines * self.tensor_parallel
        return max(self.trainer_gpus, used) if self.by_turns else self.trainer_gpus + used

    def changes(self) -> list[str]:
        """Return the keys of a recipe that say so."""
        first = 0 if self.by_turns else self.trainer_gpus
        engines = list(range(first, first + self.engines * self.tensor_parallel))
        return [
            f"train.schedule={self.schedule}",
            f"train.ranks={self.trainer_gpus}",
            f"engine.count={self.engines}",
            f"engine.tensor_parallel={self.tensor_parallel}",
            f"placement.trainer={list(range(self.trainer_gpus))}",
            f"placement.engines={engines}",
        ]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout and what it would do."""

    layout: Layout
    outcome: Outcome


def layouts(gpus: int) -> Iterator[Layout]:
    """Yield what can be done with `gpus` GPUs: by turns on all of them, or split, under each schedule."""
    for tensor_parallel in TENSOR_PARALLEL:
        if gpus % tensor_parallel == 0:
            yield Layout("synchronous", gpus, gpus // tensor_parallel, tensor_parallel, True)
        for trainer in range(max(1, gpus // SPLITS), gpus, max(1, gpus // SPLITS)):
            engines = (gpus - trainer) // tensor_parallel
            if engines and engines * tensor_parallel == gpus - trainer:
                for schedule in SCHEDULES:
                    yield Layout(schedule, trainer, engines, tensor_parallel, False)


def search(
    config: Config,
    gpu: Gpu,
    gpus: int,
    workload: Workload,
    steps: int,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Candidate]:
    """Simulate each layout that fits; the most groups an hour first. Raises `ConfigError` where none fits."""
    found = []
    for layout in layouts(gpus):
        costs = gpu_costs(config, gpu, layout.trainer_gpus, layout.tensor_parallel, layout.by_turns)
        if costs is None:
            continue
        tell(
            f"{layout.schedule}: trainer {layout.trainer_gpus}, {layout.engines} engine(s) of {layout.tensor_parallel}"
        )
        outcome = try_layout(with_schedule(config, layout.schedule), costs, workload, layout.engines, steps)
        if outcome is not None:
            found.append(Candidate(layout, outcome))
    if not found:
        raise ConfigError(
            f"model.path: {config.model.path} fits no split of {gpus} such GPUs; `asyncrl plan memory` shows the sums"
        )
    return sorted(found, key=lambda one: -one.outcome.groups_per_hour)


def try_layout(config: Config, costs: Costs, workload: Workload, engines: int, steps: int) -> Outcome | None:
    """Simulate one layout; None where it would never complete a batch."""
    try:
        return simulate(config, costs, workload, engines, steps)
    except DeadlineError:
        return None


def with_schedule(config: Config, schedule: str) -> Config:
    """Return the recipe under another schedule, with the staleness limit that it implies."""
    data = config.model_dump(mode="json")
    limit = data["buffer"].pop("max_staleness")
    data["train"]["schedule"] = schedule
    if schedule in ("asynchronous", "partial"):
        data["buffer"]["max_staleness"] = max(1, limit)
    else:
        data["buffer"]["over_provision"], data["buffer"]["token_budget"] = None, 0
        data["buffer"]["recycle"] = True
    return parse_config(data, f"train.schedule={schedule}", strict=False)
