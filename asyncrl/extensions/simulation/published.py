"""Published speed-ups of asynchronous over synchronous training, beside what the cost models say of the same set-up.

A set-up is simulated on a slice of its cluster: so many times fewer GPUs, and as many times fewer groups a step. What
was not published is assumed, and said. One assumption is common to all: the median of the episodes' lengths is such
that a synchronous step takes about as long as was published, so that the asynchronous run is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.planning.load import load_for_gpus
from asyncrl.extensions.simulation.cluster import Outcome, simulate
from asyncrl.extensions.simulation.hardware import READ, WRITE, gpu_costs, gpu_named
from asyncrl.extensions.simulation.search import with_schedule
from asyncrl.extensions.simulation.workload import DrawnWorkload

BASE = "gsm8k_1_7b_80gb"
STEPS = 8
FAR_S = 100_000.0
"""No episode is cut off by a deadline: the systems compared have none."""
OF_2025 = 0.0027
"""The fixed part of an iteration of an engine of spring 2025, in seconds. With it both published steps of AReaL's first
set-up come out, the synchronous and the asynchronous one."""
SENT, TAKEN = 4e9, 10e9
"""Bytes a second in which these systems send weights over their networks, and their engines take them over: assumed."""
WITHIN = 0.15
"""A figure is reproduced when the simulated one differs by no more than this share."""
AREAL = "https://github.com/inclusionAI/AReaL/blob/main/blog/AReaL_v0_3.md"
VERL = "https://verl.readthedocs.io/en/latest/advance/fully_async.html"
ROLLART = "https://arxiv.org/abs/2512.22560"


@dataclass(frozen=True, slots=True)
class Setup:
    """One published comparison, and what is assumed for what was not published."""

    name: str
    source: str
    speedup: tuple[float, float]
    """The speed-up of asynchronous over synchronous, as published: the lowest and the highest figure."""
    step_s: float
    """Published seconds of a synchronous step; 0 where there are none."""
    model: str
    device: str
    gpus: int
    trainer_gpus: int
    """The trainer's GPUs of the asynchronous run. The synchronous one uses all GPUs by turns."""
    slices: int
    """The cluster is cut into so many."""
    groups: int
    """The groups of a step, on the whole cluster."""
    group_size: int
    max_tokens: int
    """The most tokens of a turn."""
    median_tokens: float
    sigma: float
    max_staleness: int
    assumed: str
    differs: str = ""
    """Why the simulated figure is another one."""
    train_s: tuple[float, float] | None = None
    """Published seconds of training in a synchronous and in an asynchronous step, taken as they are; None: as the cost
    model has them."""
    tensor_parallel: int = 1
    by_turns_parallel: int = 1
    turns: int = 1
    tool_s: float = 0.0
    iteration_s: float | None = None
    """The fixed part of an iteration of the engines of that time; None: of today's."""


SETUPS = (
    Setup(
        "AReaL, 1.5B, 128 H800", AREAL, (2.77, 2.77), 147.6, "Qwen/Qwen2.5-1.5B-Instruct", "h100", 128, 32, 16, 512, 16,
        27_648, 4_000, 0.8, 8,
        "512 groups of 16, three quarters of the GPUs generate, staleness at most 8; an H800 computes as an H100; an "
        "iteration of its engines has a fixed part of 2.7 ms, where today's have 1 ms (Qwen's documentation has 2.1 ms "
        "for SGLang 0.4.6 with 0.6B)", iteration_s=OF_2025,
    ),
    Setup(
        "AReaL, 7B, 192 H800", AREAL, (2.27, 2.27), 207.7, "Qwen/Qwen2.5-7B-Instruct", "h100", 192, 96, 16, 512, 16,
        27_648, 3_300, 0.8, 8,
        "as above, but half of the GPUs train: how they were split for this model is not in the source, and with a "
        "quarter the trainer limits it to 1.31; engines of two GPUs while all generate",
        by_turns_parallel=2, iteration_s=OF_2025,
    ),
    Setup(
        "verl, 7B, 32 H20", VERL, (1.70, 2.68), 790.1, "Qwen/Qwen2.5-7B-Instruct", "h20", 32, 16, 8, 512, 16,
        28_672, 1_400, 1.0, 2,
        "seconds of training as published; staleness at most 2, where theirs limits the share of stale samples; "
        "engines of one GPU", train_s=(421.5, 269.8),
    ),
    Setup(
        "verl, 7B, 64 H20", VERL, (1.83, 2.09), 365.3, "Qwen/Qwen2.5-7B-Instruct", "h20", 64, 32, 8, 512, 16,
        28_672, 1_400, 1.0, 2, "as above", train_s=(203.7, 157.0),
    ),
    Setup(
        "verl, 7B, 128 H20", VERL, (2.35, 2.67), 356.3, "Qwen/Qwen2.5-7B-Instruct", "h20", 128, 64, 16, 512, 16,
        28_672, 1_400, 1.0, 2, "as above", train_s=(167.7, 113.2),
    ),
    Setup(
        "RollArt, agents", ROLLART, (1.35, 2.05), 0.0, "Qwen/Qwen3-8B", "h100", 32, 8, 2, 32, 8, 2_048, 150, 0.8, 1,
        "all of it, so that the figure is no more than plausible: 16 turns, tools of 2 s (median), 32 groups of 8, 32 "
        "GPUs of one kind. Their gain from GPUs of two kinds is not simulated",
        turns=16, tool_s=2.0,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """A set-up simulated under both schedules."""

    setup: Setup
    synchronous: Outcome
    asynchronous: Outcome

    @property
    def speedup(self) -> float:
        return self.asynchronous.groups_per_hour / self.synchronous.groups_per_hour

    @property
    def reproduced(self) -> bool:
        low, high = self.setup.speedup
        return low * (1 - WITHIN) <= self.speedup <= high * (1 + WITHIN)


def compare(setup: Setup, steps: int = STEPS) -> Comparison:
    """Simulate a set-up. Raises `ConfigError` where its model does not fit the slice."""
    config = _config(setup)
    workload = DrawnWorkload(
        turns=setup.turns,
        prompt_tokens=500,
        sampled_tokens=setup.median_tokens,
        max_sampled_tokens=setup.max_tokens,
        observed_tokens=100,
        sampled_sigma=setup.sigma,
        tool_s=setup.tool_s,
    )
    gpus, trainer = setup.gpus // setup.slices, setup.trainer_gpus // setup.slices
    together = (gpus, gpus // setup.by_turns_parallel, setup.by_turns_parallel, True)
    apart = (trainer, (gpus - trainer) // setup.tensor_parallel, setup.tensor_parallel, False)
    outcomes = []
    for place, (schedule, (ranks, engines, parallel, by_turns)) in enumerate(
        (("synchronous", together), ("partial", apart))
    ):
        planned = with_schedule(config, schedule)
        costs = gpu_costs(planned, gpu_named(setup.device), ranks, parallel, by_turns)
        if costs is None:
            raise ConfigError(f"{setup.name}: {setup.model} does not fit {ranks} GPUs")
        by_network = replace(
            costs.trainer,
            publish_s=costs.trainer.publish_s * WRITE / SENT,
            swap_s=costs.trainer.swap_s * READ / TAKEN,
        )
        costs = replace(costs, trainer=by_network)
        if setup.iteration_s is not None:
            costs = replace(costs, engine=replace(costs.engine, iteration_s=setup.iteration_s))
        if setup.train_s is not None:
            costs = replace(costs, trainer=replace(costs.trainer, token_s=0.0, step_s=setup.train_s[place]))
        outcomes.append(simulate(planned, costs, workload, engines, steps))
    return Comparison(setup, *outcomes)


def _config(setup: Setup) -> Config:
    context = setup.turns * (setup.max_tokens + 100) + 500
    changes = {
        "model.path": setup.model,
        "engine.max_model_len": context,
        "rollout.group_size": setup.group_size,
        "rollout.max_tokens_per_turn": setup.max_tokens,
        "rollout.episode_timeout_s": FAR_S,
        "buffer.wait_timeout_s": FAR_S,
        "buffer.groups_per_step": setup.groups // setup.slices,
        "buffer.max_staleness": setup.max_staleness,
        "train.zero_stage": 3,
    }
    return load_for_gpus(BASE, [f"{key}={value}" for key, value in changes.items()])


def as_text(found: Sequence[Comparison]) -> str:
    """Return the comparisons as a table of Markdown, and what each of them assumes."""
    lines = [
        "| set-up | synchronous step, s: published, simulated | speed-up: published | simulated | within 15 % |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in found:
        low, high = one.setup.speedup
        published = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
        step = f"{one.setup.step_s:.0f}" if one.setup.step_s else "-"
        lines.append(
            f"| [{one.setup.name}]({one.setup.source}) | {step}, {one.synchronous.step_s:.0f} | {published} | "
            f"{one.speedup:.2f} | {'yes' if one.reproduced else 'no'} |"
        )
    lines.append("")
    for one in found:
        lines.append(f"- **{one.setup.name}** assumes: {one.setup.assumed}.{_why(one)}")
    return "\n".join(lines)


def _why(one: Comparison) -> str:
    return f" {one.setup.differs}" if one.setup.differs and not one.reproduced else ""


def as_json(one: Comparison) -> dict[str, Any]:
    """Return a comparison for `--json`."""
    return {
        "source": one.setup.source,
        "published_speedup": one.setup.speedup,
        "published_synchronous_step_s": one.setup.step_s,
        "simulated_speedup": one.speedup,
        "simulated_synchronous_step_s": one.synchronous.step_s,
        "simulated_asynchronous_step_s": one.asynchronous.step_s,
        "assumed": one.setup.assumed,
        "reproduced": one.reproduced,
    }
