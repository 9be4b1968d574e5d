"""Which schedule and which split of the GPUs trains the most groups an hour: the likeliest ones are simulated.

Simulating one takes seconds, and there are dozens. `estimate` says of each how long a step would take if engines and
trainer never waited for each other but as the schedule asks; the best by it are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from asyncrl.config import Config, parse_config
from asyncrl.errors import ConfigError, DeadlineError
from asyncrl.extensions.simulation.cluster import Outcome, simulate
from asyncrl.extensions.simulation.costs import Costs
from asyncrl.extensions.simulation.hardware import Gpu, gpu_costs
from asyncrl.extensions.simulation.workload import EpisodeShape, Workload
from asyncrl.types import Task

SCHEDULES = ("synchronous", "one_step_off", "asynchronous", "partial")
TENSOR_PARALLEL = (1, 2, 4, 8)
SPLITS = 8
"""Splits of the GPUs that are tried for each number of GPUs an engine has."""
SIMULATED = 10
"""Layouts that are simulated."""
SAMPLE = 64
"""Groups whose lengths an estimate is made from."""


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
    """Simulate the likeliest layouts that fit; the most groups an hour first. Raises `ConfigError` where none fits."""
    found = []
    for layout, costs in likeliest(config, gpu, gpus, workload):
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


def likeliest(
    config: Config, gpu: Gpu, gpus: int, workload: Workload, limit: int = SIMULATED
) -> list[tuple[Layout, Costs]]:
    """Return the layouts that fit and may be the fastest, by their estimates; the best of each schedule among them."""
    fitting: list[tuple[float, Layout, Costs]] = []
    sample = [
        workload.group(Task(f"estimate-{number}", ""), config.rollout.group_size) for number in range(SAMPLE)
    ]
    for layout in layouts(gpus):
        costs = gpu_costs(config, gpu, layout.trainer_gpus, layout.tensor_parallel, layout.by_turns)
        if costs is not None:
            took = estimate(with_schedule(config, layout.schedule), layout, costs, sample)
            fitting.append((took, layout, costs))
    fitting.sort(key=lambda one: one[0])
    kinds = {(one[1].schedule, one[1].by_turns): one for one in reversed(fitting)}
    chosen = {id(one): one for one in (*kinds.values(), *fitting)}
    return [(layout, costs) for _, layout, costs in list(chosen.values())[:limit]]


def estimate(config: Config, layout: Layout, costs: Costs, sample: Sequence[Sequence[EpisodeShape]]) -> float:
    """Return the seconds of a step if nothing waited but as the schedule asks. sample: groups of the workload."""
    engine, trainer = costs.engine, costs.trainer
    shapes = [shape for group in sample for shape in group]
    sampled = sum(turn.sampled_tokens for shape in shapes for turn in shape.turns) / len(shapes)
    context = sum(shape.context_tokens for shape in shapes) / len(shapes)
    # Half of what a sequence has at its end; of those that run at any moment the longer ones are more than their share.
    running = sum(shape.context_tokens**2 for shape in shapes) / (2 * context * len(shapes))
    tools_s = sum(turn.tool_s for shape in shapes for turn in shape.turns) / len(shapes)
    episodes = config.buffer.groups_per_step * config.rollout.group_size
    ahead = 1 + (config.buffer.max_staleness if layout.schedule != "synchronous" else 0)
    together = max(1.0, min(
        engine.max_num_seqs, engine.kv_tokens / running, episodes * min(2, ahead) / layout.engines,
    ))  # fmt: skip
    iteration_s = engine.iteration(int(together), together * running)
    decoding_s = episodes * sampled / layout.engines / together * iteration_s
    prefill_s = episodes * (context - sampled) / layout.engines * engine.prefill_token_s
    training_s = episodes * context * trainer.token_s + trainer.step_s
    # What the last episodes take, in which few are left: until then as many as fit run together.
    longest = max(sum(turn.sampled_tokens for turn in shape.turns) for shape in shapes)
    tail_s = (longest - sampled) * engine.iteration(8, 8 * context) / 2 + tools_s
    generating_s = decoding_s + prefill_s + trainer.swap_s
    match layout.schedule:
        case "synchronous":
            return generating_s + tail_s + training_s + trainer.publish_s + 2 * costs.turn_s
        case "one_step_off" | "asynchronous":
            return max(generating_s + tail_s, training_s + trainer.publish_s)
        case _:
            recomputed_s = together * running * engine.prefill_token_s
            return max(generating_s + recomputed_s, training_s + trainer.publish_s)


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
        if data["buffer"]["over_provision"] == "auto":
            # The few steps that are simulated end before it has found how many groups in flight are fastest.
            data["buffer"]["over_provision"] = "all"
    else:
        data["buffer"]["token_budget"] = 0
        del data["buffer"]["over_provision"]
        data["buffer"]["recycle"] = True
    return parse_config(data, f"train.schedule={schedule}", strict=False)
