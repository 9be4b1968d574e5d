"""One training step: advantages over the whole batch, then losses by micro-batch, then the optimizer.

`train_step` is the same for one rank or many. The first rank has the batch and computes what needs the whole of it;
the others are served the rows that they run the model on (`asyncrl.train.step.serve_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.metrics import Metrics, from_plain, merge, reduce_over_ranks, to_plain
from asyncrl.algo.objective import Objective
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.controls import Controls, EntropyController, KlController
from asyncrl.train.step.estimates import estimate_advantages
from asyncrl.train.step.finite import accumulate_finite
from asyncrl.train.step.gradient import LeaveOut, Step, apply
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.serve_rows import gather_values
from asyncrl.train.step.step_batch import StepBatch, sampled_tokens
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors


@dataclass(slots=True)
class StepReport:
    """What a step did."""

    metrics: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    num_sequences: int = 0
    skipped: str = ""
    """Why no optimizer step was taken, empty when one was."""
    went_back_to: int | None = None
    """The version whose policy has come back after the step."""
    message: str = ""
    """What callbacks say of the step, empty where they did nothing."""
    left_out: dict[int, str] = field(default_factory=dict)
    """Groups left out because they make the loss or gradient NaN or infinite: index in the batch to reason."""
    token_values: dict[str, Ragged] = field(default_factory=dict)
    """On the first rank, of the sampled tokens, by column of the trajectories' table; empty where the step was streamed
    group by group."""
    turn_rewards: list[list[float]] | None = None
    """[B][K] on the first rank, what the turns were rewarded with where that is not what the environment gave."""


def train_step(
    engine: TrainEngine,
    objective: Objective,
    auxiliary: AuxiliaryModels,
    batch: StepBatch,
    settings: StepSettings,
    learning_rate: float,
    controls: Controls | None = None,
    leave_out: LeaveOut = lambda found: None,
) -> StepReport:
    """Train on one batch. A collective: call on every rank with what `share_batch` returns.

    Groups that make the loss or the gradient NaN or infinite are left out, the same ones on every rank, and reported.
    Raises ValueError when what all rows share is not finite; nothing has been applied then.
    """
    controls = controls or Controls(
        KlController(objective.kl_coef), EntropyController(objective.entropy_coef)
    )
    tensors = auxiliary.step_tensors(engine, batch, settings, settings.num_minibatches)
    trackers = controls.trackers if engine.rank == 0 else ()
    tensors.rows |= {one.name: one.baselines(batch) for one in trackers}
    left_out: dict[int, str] = {}
    ahead = Step(
        engine, objective, auxiliary, batch, tensors, settings, 0.0, controls.kl.coef, leave_out, ahead=True,
    )  # fmt: skip
    for _ in range(auxiliary.steps_ahead):
        _step_ahead(ahead, left_out)
    decided = decide(
        engine, objective, auxiliary, batch, tensors, controls.kl.coef,
        lambda: _measure(objective, batch, tensors, controls, learning_rate),
    )  # fmt: skip
    kept = [row for row in decided.kept if int(batch.group[row]) not in left_out]
    if not kept and not left_out:
        return StepReport(
            skipped="every trajectory was filtered out", metrics=objective.report(decided.metrics)
        )
    rate = decided.measured.get("learning_rate", learning_rate)
    step = Step(
        engine, objective, auxiliary, batch, tensors, settings, rate, controls.kl.coef, leave_out,
        controls.entropy.applied,
    )  # fmt: skip
    parts: list[Metrics] = []
    norms: list[float] = []

    for part in split_minibatches(batch, kept, settings.num_minibatches):
        norms.append(_minibatch(step, part, parts, left_out))
    auxiliary.release()
    if not parts:
        return StepReport(
            skipped="the loss or gradient was not finite",
            metrics=objective.report(decided.metrics),
            left_out=left_out,
        )
    kept = [row for row in kept if int(batch.group[row]) not in left_out]
    for one in trackers:
        one.learn(batch, tensors)
    metrics = objective.report(reduce_over_ranks(merge(parts), engine.sum_shares) | decided.metrics)
    metrics |= decided.measured
    metrics["grad_norm"] = max(norms)
    metrics["learning_rate"] = rate
    num_tokens = int(batch.counts[kept].sum())
    return StepReport(
        metrics, num_tokens, len(kept), left_out=left_out, token_values=_token_values(step, kept)
    )


def _step_ahead(step: Step, left_out: dict[int, str]) -> None:
    """Take a round of steps ahead of the policy's, one for each minibatch; then compute anew what that has changed.
    A collective."""
    engine, batch, auxiliary = step.engine, step.batch, step.auxiliary
    decided = decide(engine, step.objective, auxiliary, batch, step.tensors, step.kl_coef)
    kept = [row for row in decided.kept if int(batch.group[row]) not in left_out]
    for rows in split_minibatches(batch, kept, step.settings.num_minibatches):
        _minibatch(step, rows, [], left_out)
    auxiliary.after_step_ahead(engine, batch, step.settings, step.tensors)


@dataclass(frozen=True, slots=True)
class Decided:
    """What the first rank finds out over the whole batch before any gradient; the same on every rank."""

    kept: list[int]
    """Rows that enter the loss."""
    metrics: Metrics
    measured: dict[str, float]
    """Metrics that are plain numbers."""


def decide(
    engine: TrainEngine,
    objective: Objective,
    auxiliary: AuxiliaryModels,
    batch: StepBatch,
    tensors: StepTensors,
    kl_coef: float,
    measure: Callable[[], dict[str, float]] = dict,
) -> Decided:
    """Estimate advantages, into `tensors`, and measure what losses read of the whole step. A collective."""

    def on_first_rank() -> dict[str, Any]:
        estimate = estimate_advantages(objective, batch, tensors, kl_coef)
        tensors.tensors |= {"advantages": estimate.advantages, **estimate.others}
        statistics: dict[str, Tensor] = {}
        if objective.needs_step_statistics:
            everything = list(range(batch.num_rows))
            statistics = objective.step_statistics(auxiliary.whole_inputs(batch, tensors, everything))
        only = tensors.trained
        return {
            "kept": [row for row, kept in enumerate(estimate.keep) if kept and (only is None or row in only)],
            "metrics": to_plain(estimate.metrics | tensors.metrics),
            "statistics": {name: float(value) for name, value in statistics.items()},
            "measured": measure(),
            "zero_advantage": estimate.advantages.zero_rows(),
        }

    found = engine.on_first(on_first_rank)
    tensors.statistics = {name: torch.tensor(value) for name, value in found["statistics"].items()}
    tensors.zero_advantage = frozenset(found["zero_advantage"])
    return Decided(found["kept"], from_plain(found["metrics"]), found["measured"])


def _measure(
    objective: Objective, batch: StepBatch, tensors: StepTensors, controls: Controls, learning_rate: float
) -> dict[str, float]:
    """Return what decides the step's learning rate, and the KL that is part of the reward. On the first rank."""
    found = {}
    everything = list(range(batch.num_rows))
    if controls.lr_power and tensors.policy_logp is not None:
        rows = sampled_tokens(batch, everything)
        log_ratio = (tensors.policy_logp.padded(everything) - rows.behavior_logp) * rows.mask
        rate, ess = controls.learning_rate(learning_rate, log_ratio, rows.mask)
        if ess is not None:
            found = {
                "learning_rate": rate,
                "lr_scaling/ess": ess,
                "lr_scaling/factor": rate / learning_rate if learning_rate else 1.0,
            }
    if objective.settings["kl"]["where"] == "reward" and "reference_logp" in tensors.tensors:
        kl = objective.kl_fn(
            tensors.tensors["proximal_logp"].values, tensors.tensors["reference_logp"].values
        )
        found["reference_kl"] = float(kl.sum() / max(1, len(kl)))
    return found


def _token_values(step: Step, kept: Sequence[int]) -> dict[str, Ragged]:
    """Return on the first rank what the step computed for each token. A collective."""
    engine, batch, tensors = step.engine, step.batch, step.tensors
    found: dict[str, Ragged] = {}
    if step.objective.needs_entropy:
        mine = sorted(step.entropies)
        # The first of the ranks that compute the same rows speaks for them.
        plan = [[rows] for rows in engine.gather_lists(mine)[:: engine.ranks_of_share]]
        values = {"entropies": [step.entropies[row] for row in mine]}
        found |= gather_values(engine, batch.counts, plan, values, missing=torch.nan)
        dropped = set(range(batch.num_rows)) - set(kept)
        for row in dropped if engine.rank == 0 else ():
            found["entropies"].row(row).fill_(torch.nan)
    if engine.rank == 0:
        found["advantages"] = tensors.tensors["advantages"]
        if tensors.policy_logp is not None:
            found["policy_logprobs"] = tensors.policy_logp
    return found


def _minibatch(step: Step, rows: Sequence[int], parts: list[Metrics], left_out: dict[int, str]) -> float:
    """Take one optimizer step on `rows` less the groups that are not finite; return the gradient norm, 0 without a
    step."""
    found, rows, wrong = accumulate_finite(step, rows)
    left_out.update(wrong)
    if not rows:
        return 0.0
    parts += found
    return apply(step)


def split_minibatches(batch: StepBatch, rows: Sequence[int], count: int) -> list[list[int]]:
    """Deal whole groups to `count` minibatches in turn; groups stay together for pairwise losses."""
    groups = sorted({int(batch.group[row]) for row in rows})
    place = {group: number % count for number, group in enumerate(groups)}
    split: list[list[int]] = [[] for _ in range(count)]
    for row in rows:
        split[place[int(batch.group[row])]].append(row)
    return [part for part in split if part]
