"""Costs and workload of a run that was made, from what its folder holds.

    activity.jsonl   iterations and tokens of each engine, cores of each process   -> engine, shared cores
    metrics.jsonl    seconds of training, publishing, pauses by step                -> trainer
    trajectories     turns, tokens and seconds of each episode                      -> workload

On a CPU an engine's time is the processor time that it used; on GPUs it is the time in which it had requests. One
factor on it is then set so that the simulation of this very run trains as many groups an hour as it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import nnls

from asyncrl.config import Config, load_config
from asyncrl.errors import InputError
from asyncrl.extensions.simulation.cluster import simulate
from asyncrl.extensions.simulation.costs import Costs, EngineCosts, SharedCores, TrainerCosts
from asyncrl.extensions.simulation.workload import EpisodeShape, RecordedWorkload, TurnShape
from asyncrl.kv_blocks import CPU_TOKENS, GPU_TOKENS, LONG_CONTEXT, LONG_TOKENS, short_blocks
from asyncrl.launch.reports.activity import FILE
from asyncrl.run.json_lines import JsonLines
from asyncrl.run.metrics import read_metrics

COLUMNS = ["step", "group", "version_admitted", "token_ids", "turn_start", "turn_end", "env_s"]
BUSY_CORES = 0.3
"""A trainer that uses fewer cores than this waits."""
LONGEST_GAP_S = 10.0
"""Lines of activity that are further apart belong to different lives of a run."""
FACTORS = (0.25, 4.0)
"""Bounds of the factor on the engine's time."""
ROUNDS = 7
"""Halvings of the range of that factor."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a run shows."""

    config: Config
    costs: Costs
    workload: RecordedWorkload
    groups_per_hour: float
    """Trained after the first commit."""
    simulated_groups_per_hour: float
    """The groups an hour of the same run, simulated with these costs."""
    factor: float
    """On the engine's time."""


def calibrate(run: Path) -> Calibration:
    """Read a finished run. Raises `InputError` where it holds too little."""
    if not (run / "config.json").is_file():
        raise InputError(f"{run}: is no run: it has no config.json")
    config = load_config(run / "config.json")
    steps, activity = read_metrics(run), JsonLines(run / FILE).refresh()
    if len(steps) < 4:
        raise InputError(f"{run}: has {len(steps)} steps; a calibration needs at least 4")
    trained, workload = recorded(run, config, steps)
    on_gpus = bool(config.placement.trainer or config.placement.engines)
    engine = _engine_costs(run, config, activity, on_gpus)
    shared = SharedCores() if on_gpus else _shared_cores(activity)
    costs = Costs(engine, _trainer_costs(steps, trained), shared)
    measured = measured_groups_per_hour(steps)
    return _fit_factor(config, costs, workload, measured, len(steps))


def _fit_factor(
    config: Config, costs: Costs, workload: RecordedWorkload, measured: float, steps: int
) -> Calibration:
    """Set the factor on the engine's time with which the run's own rate comes out, by halving its range."""

    def rate(factor: float) -> float:
        scaled = replace(costs, engine=scale(costs.engine, factor))
        return simulate(config, scaled, workload, config.engine.count, steps).groups_per_hour

    low, high = FACTORS
    factor, found = 1.0, rate(1.0)
    for _ in range(ROUNDS):
        if abs(found / measured - 1) < 0.01:
            break
        if found > measured:
            low = factor
        else:
            high = factor
        factor = (low * high) ** 0.5
        found = rate(factor)
    scaled = replace(costs, engine=scale(costs.engine, factor))
    return Calibration(config, scaled, workload, measured, found, factor)


def scale(engine: EngineCosts, factor: float) -> EngineCosts:
    """Return the costs of an engine that takes `factor` times as long for everything."""
    return replace(
        engine,
        iteration_s=engine.iteration_s * factor,
        sequence_s=engine.sequence_s * factor,
        weights_s=engine.weights_s * factor,
        experts_s=engine.experts_s * factor,
        product_s=engine.product_s * factor,
        context_token_s=engine.context_token_s * factor,
        prefill_token_s=engine.prefill_token_s * factor,
    )


def _windows(activity: Sequence[dict[str, Any]]) -> Iterator[tuple[float, dict[str, Any], dict[str, Any]]]:
    for before, after in pairwise(activity):
        seconds = after["time"] - before["time"]
        if 0 < seconds < LONGEST_GAP_S:
            yield seconds, before, after


def _engine_costs(
    run: Path, config: Config, activity: Sequence[dict[str, Any]], on_gpus: bool
) -> EngineCosts:
    """Fit seconds = iterations * a + computed tokens * b over the run's windows, neither of them negative."""
    rows, seconds = [], []
    for passed, before, after in _windows(activity):
        for name, state in after["engines"].items():
            earlier = before["engines"].get(name, {})
            if "iterations" not in state or "iterations" not in earlier:
                continue
            iterations = state["iterations"] - earlier["iterations"]
            if iterations <= 0:
                continue
            busy = passed if earlier["running"] and state["running"] else 0.0
            took = busy if on_gpus else after["processes"].get(name, 0.0) * passed
            if took:
                rows.append((iterations, state["computed_tokens"] - earlier["computed_tokens"]))
                seconds.append(took)
    if len(rows) < 3:
        raise InputError(
            f"{run}: its {FILE} tells too little of the engines; a run of a minute or more is needed"
        )
    (iteration_s, token_s), _ = nnls(np.array(rows, float), np.array(seconds))
    return EngineCosts(
        iteration_s=max(float(iteration_s), 1e-6),
        sequence_s=float(token_s),
        prefill_token_s=float(token_s),
        max_num_seqs=config.engine.max_num_seqs,
        block_tokens=block_tokens(config, on_gpus),
    )


def block_tokens(config: Config, on_gpus: bool) -> int:
    """Return how many tokens a block of a recipe's KV cache holds."""
    given = " ".join(config.engine.extra_args).replace("=", " ").split()
    if "--block-size" in given[:-1]:
        return int(given[given.index("--block-size") + 1])
    if on_gpus:
        return LONG_TOKENS if config.engine.max_model_len >= LONG_CONTEXT else GPU_TOKENS
    return short_blocks(config.engine.max_model_len) or CPU_TOKENS


def _shared_cores(activity: Sequence[dict[str, Any]]) -> SharedCores:
    """Cores that the trainer, and everything else, use while they work."""
    trainer, generation = [], []
    for _, before, after in _windows(activity):
        cores = after["processes"]
        trains = cores.get("trainer", 0.0)
        if trains > BUSY_CORES:
            trainer.append(trains)
        generates = all(any(e["running"] for e in line["engines"].values()) for line in (before, after))
        if generates and trains < BUSY_CORES:
            generation.append(sum(used for name, used in cores.items() if name != "trainer"))
    cores = float(activity[-1]["cores"])
    return SharedCores(
        cores=cores,
        trainer=min(cores, float(np.percentile(trainer, 90))) if trainer else 0.0,
        generation=max(0.1, float(np.percentile(generation, 90)) if generation else 1.0),
    )


def _fit_training(steps: Sequence[dict[str, Any]], tokens: Mapping[int, int]) -> tuple[float, float, float]:
    """Fit seconds of training = tokens * a + b over the steps after the first, which warms up; return a, b and the
    error. tokens: by step."""
    later = [s for s in steps[1:] if s["step"] in tokens]
    counts = np.array([[tokens[s["step"]], 1.0] for s in later])
    (token_s, step_s), error = nnls(counts, np.array([s["time/train_s"] for s in later]))
    return float(token_s), float(step_s), float(error)


def _trainer_costs(steps: Sequence[dict[str, Any]], tokens: Mapping[int, int]) -> TrainerCosts:
    token_s, step_s, _ = _fit_training(steps, tokens)
    later = steps[1:]
    # Runs of earlier versions have only the time that the trainer waited, which was all of it.
    published = [s.get("weights/publish_s", s["time/publish_s"]) - s["time/pause_s"] for s in later]
    return TrainerCosts(
        token_s=token_s,
        step_s=step_s,
        publish_s=float(np.median(published)),
        swap_s=float(np.median([s["time/pause_s"] for s in later])),
    )


@dataclass(slots=True)
class _Group:
    """A recorded group: its rows, and how many tokens of each no earlier one has at the same place after the same."""

    step: int
    version: int
    """That played it."""
    nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    """The nodes of a prefix tree, by the node before and the token."""
    episodes: list[EpisodeShape] = field(default_factory=list)
    new_tokens: list[int] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        node, known = 0, len(self.nodes)
        for token in row["token_ids"]:
            node = self.nodes.setdefault((node, token), len(self.nodes) + 1)
        self.new_tokens.append(len(self.nodes) - known)
        self.episodes.append(_shape(row["turn_start"], row["turn_end"], row["env_s"] or 0.0))


def recorded(
    run: Path, config: Config, steps: Sequence[dict[str, Any]]
) -> tuple[dict[int, int], RecordedWorkload]:
    """Return the tokens that the trainer computed in each step, and the episodes in the order of their policies.

    A model whose trainer computes what rows share only once, such as the prompt of a group, is told from one that does
    not by which count of tokens explains the seconds of training better.
    """
    groups = sorted(_groups(run), key=lambda group: group.version)
    all_tokens, new_tokens = Counter[int](), Counter[int]()
    for group in groups:
        all_tokens[group.step] += sum(episode.context_tokens for episode in group.episodes)
        new_tokens[group.step] += sum(group.new_tokens)
    shares = _fit_training(steps, new_tokens)[2] < _fit_training(steps, all_tokens)[2]
    episodes = [
        [replace(one, trained_tokens=new) for one, new in zip(group.episodes, group.new_tokens, strict=True)]
        if shares
        else group.episodes
        for group in groups
    ]
    episodes_a_step = sum(step["batch/groups"] for step in steps) / len(steps) * config.rollout.group_size
    progress = [group.version * episodes_a_step for group in groups]
    return new_tokens if shares else all_tokens, RecordedWorkload(episodes, progress, _no_signal(steps))


def _groups(run: Path) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for path in sorted((run / "trajectories").glob("*.parquet")):
        if "env_s" not in pq.read_schema(path).names:
            raise InputError(
                f"{run}: was recorded by an earlier version, which did not note the time of tools"
            )
        for row in pq.read_table(path, columns=COLUMNS).to_pylist():
            if row["turn_start"]:
                found = groups.setdefault(row["group"], _Group(row["step"], row["version_admitted"]))
                found.add(row)
    if not groups:
        raise InputError(f"{run}: has no trajectories")
    return list(groups.values())


def _shape(starts: Sequence[int], ends: Sequence[int], env_s: float) -> EpisodeShape:
    """The tool's time of an episode is spread evenly over its turns."""
    previous = [0, *ends]
    return EpisodeShape(
        tuple(
            TurnShape(start - previous[number], max(1, end - start), env_s / len(starts))
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        ),
        reward=0.0,
    )


def _no_signal(steps: Sequence[dict[str, Any]]) -> float:
    last = steps[-1]
    dropped, trained = last.get("buffer/dropped", 0), last.get("buffer/trained", 0)
    return dropped / max(1, dropped + trained)


def measured_groups_per_hour(steps: Sequence[dict[str, Any]]) -> float:
    """Return the groups a run trained an hour, from its first commit on."""
    seconds = steps[-1]["time"] - steps[0]["time"]
    return 3600 * sum(step["batch/groups"] for step in steps[1:]) / max(seconds, 1e-9)
