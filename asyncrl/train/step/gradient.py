"""The gradient of one optimizer step: micro-batches through the model, their losses, and the backward passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, NonFiniteError, Totals, totals_of
from asyncrl.algo.metrics import Metrics
from asyncrl.algo.objective import Objective
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.serve_rows import Plan, end_of_step, plan_rows, serve_rows, serve_values
from asyncrl.train.step.step_batch import Rows, StepBatch, pad_rows
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.whole_batch import whole_batch

LeaveOut = Callable[[dict[int, str]], None]
"""Called on every rank with groups that are not finite (index in the batch to reason), before the optimizer's step."""


@dataclass(frozen=True, slots=True)
class Share:
    """What the micro-batches of one plan read on this rank, besides the rows: the values of their sampled tokens."""

    values: dict[str, dict[int, Tensor]]
    """By `LossInputs` name and row."""

    def padded(self, micro: Rows, device: torch.device) -> dict[str, Tensor]:
        """Return what `LossInputs` takes of a micro-batch, [B,T] each."""
        where = micro.mask.to(device)
        found = {}
        for name, by_row in self.values.items():
            flat = torch.cat([torch.zeros(0), *(by_row[row] for row in micro.indices)]).to(device)
            found[name] = torch.zeros(where.shape, device=device).masked_scatter(where, flat)
        return found


@dataclass(frozen=True, slots=True)
class Step:
    """What the micro-batches of one step share."""

    engine: TrainEngine
    objective: Objective
    auxiliary: AuxiliaryModels
    batch: StepBatch
    tensors: StepTensors
    settings: StepSettings
    learning_rate: float
    kl_coef: float
    leave_out: LeaveOut
    entropy_coef: float | None = None
    """None for the recipe's own."""
    ahead: bool = False
    """Whether this is of a round before the policy's own, in which it has no part."""
    entropies: dict[int, Tensor] = field(default_factory=dict)
    """The entropies of the sampled tokens of rows that this rank has trained on, where the objective computes
    entropies."""

    @property
    def policy_learns(self) -> bool:
        """Whether the objective's own loss is computed."""
        return not self.ahead and not self.auxiliary.learn_alone(self.batch.step)

    @property
    def trains_policy(self) -> bool:
        """Whether the policy's weights change, by the objective's own loss or that of a part."""
        return self.policy_learns or self.auxiliary.on_policy


def accumulate(
    step: Step, rows: Sequence[int], totals: Totals | None = None, last: bool = True
) -> tuple[list[Metrics], str]:
    """Accumulate the gradients of `rows`; return metrics, and what is not finite on any rank. A collective.

    `totals` are those of the optimizer step, counted over `rows` where not given; `last` says that no more follow.
    Rows that have no gradient by their advantages are computed for the metrics alone, without a backward pass.
    """
    engine, objective, batch = step.engine, step.objective, step.batch
    totals = totals or _totals(step, rows)
    statistics = ratio_statistics(step, rows) if step.policy_learns else {}
    units = batch.group.tolist() if "pairs" in objective.needs else None
    found: list[Metrics] = []
    why = ""
    measured, trained = _by_gradient(step, rows)
    plans: list[tuple[list[list[list[int]]], bool]] = []
    for part, learns in ((measured, False), (trained, True)):
        if part:
            plans.append((plan_rows(engine, batch, step.settings.micro_batch_tokens, part, units), learns))
    if last and not trained:
        plans.append((end_of_step(engine), True))
    for plan, learns in plans:
        share = serve(step, plan)
        mine = plan[engine.share]
        for number, chosen in enumerate(mine):
            final = learns and last and number == len(mine) - 1
            metrics, wrong = micro_batch(step, share, chosen, totals, statistics, final, learns)
            found.append(metrics)
            why = why or wrong
    problem = engine.any_text(why)
    if not problem and not all(one.finite() for one in _engines(step)):
        problem = "the gradient holds NaN or infinite values"
    return found, problem


def _by_gradient(step: Step, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the rows that have no gradient, and the others."""
    if not step.policy_learns or not step.objective.weighed_by_advantage(step.kl_coef, step.entropy_coef):
        return [], list(rows)
    flat = step.tensors.zero_advantage
    return [row for row in rows if row in flat], [row for row in rows if row not in flat]


def serve(step: Step, plan: Plan) -> Share:
    """Give each rank the rows of its micro-batches and what the loss reads of them. A collective."""
    serve_rows(step.engine, step.batch, plan)
    step.auxiliary.serve(step.engine, plan, step.tensors)
    return Share(serve_values(step.engine, step.batch, plan, step.tensors.for_loss()))


def _engines(step: Step) -> list[TrainEngine]:
    return [step.engine, *step.auxiliary.trained_engines.values()]


def discard(step: Step) -> None:
    for engine in _engines(step):
        engine.discard()


def apply(step: Step, divide_by: float = 1.0) -> float:
    """Take the optimizer steps; return the largest gradient norm. The policy's gradient is divided by `divide_by`."""
    step.auxiliary.before_update(step.engine, step.batch, step.settings)
    norms = [0.0, *(part.update() for part in step.auxiliary.parts.values() if part.engine is not None)]
    if step.trains_policy:
        norms.append(step.engine.step(step.learning_rate, divide_by))
    return max(norms)


def micro_batch(
    step: Step,
    share: Share,
    rows: list[int],
    totals: Totals,
    statistics: dict[str, Tensor],
    last: bool,
    has_gradient: bool = True,
) -> tuple[Metrics, str]:
    """Run forward and, on rows that have a gradient, backward; return metrics, and what is not finite.

    A rank that finds something still runs the backward pass, since other ranks may wait in it.
    """
    micro = pad_rows(step.batch, rows)
    outputs = _forward(step, micro, step.trains_policy and has_gradient)
    if step.objective.needs_entropy and micro.indices and not step.ahead:
        entropy = outputs["entropy"].detach().float()[micro.mask.to(outputs["entropy"].device)].cpu()
        counts = [int(step.batch.counts[row]) for row in rows]
        step.entropies.update(zip(rows, entropy.split(counts), strict=True))
    inputs = loss_inputs(step, share, micro, outputs)
    inputs = dataclasses.replace(inputs, statistics=inputs.statistics | statistics)
    others, metrics = _losses_of_parts(step, micro, outputs, inputs, totals)
    try:
        policy, found = _policy_loss(step, inputs, totals)
    except NonFiniteError as error:
        if has_gradient:
            nothing = [(part, 0 * loss) for part, loss in others]
            _backward(step, 0 * outputs["logp"].sum(), nothing, last)
        return {}, _of_trajectory(step.batch, rows, error)
    if has_gradient:
        _backward(step, policy, others, last)
    total = policy.detach() + sum(loss.detach() for _, loss in others)
    return found | metrics, "" if bool(torch.isfinite(total)) else f"the loss is {float(total)}"


def _forward(step: Step, micro: Rows, with_gradient: bool) -> dict[str, Tensor]:
    """Return what the trained model computes of a micro-batch."""
    engine, keeps_entropy = step.engine, step.objective.needs_entropy and not step.ahead
    if not step.trains_policy and not keeps_entropy:
        # While parts with weights of their own are trained alone, nothing else reads the policy.
        engine.progress.mark()
        return {"logp": torch.zeros(micro.mask.shape, device=engine.device)}
    own = ("entropy",) if step.objective.needs_entropy else ()
    want = (*own, *step.auxiliary.reads(step.policy_learns))
    compared = step.auxiliary.compared(step, micro)
    with torch.set_grad_enabled(with_gradient):
        return engine.outputs(
            micro.token_ids, micro.mask, step.settings.temperature, want, compared, micro.extras
        )


def _of_trajectory(batch: StepBatch, rows: Sequence[int], error: NonFiniteError) -> str:
    """Say what is not finite, and of which trajectory."""
    if error.row >= len(rows):
        return str(error)
    trajectory = batch.row(rows[error.row])
    return f"{error.name} of task {trajectory.task_id} episode {trajectory.episode_index} {error.problem}"


def _losses_of_parts(
    step: Step, micro: Rows, outputs: dict[str, Tensor], inputs: LossInputs, totals: Totals
) -> tuple[list[tuple[StepPart, Tensor]], Metrics]:
    """Return the losses that parts add in this micro-batch, and their metrics."""
    found: list[tuple[StepPart, Tensor]] = []
    metrics: Metrics = {}
    for part in step.auxiliary.parts.values():
        added = part.loss(step, micro, outputs, inputs, totals)
        if added is not None:
            found.append((part, added[0]))
            metrics |= added[1]
    return found, metrics


def _policy_loss(step: Step, inputs: LossInputs, totals: Totals) -> tuple[Tensor, Metrics]:
    """Return this micro-batch's share of the objective's loss, and its metrics. Raises `NonFiniteError`."""
    if not step.policy_learns:
        return torch.zeros((), device=step.engine.device), {}
    return step.objective.loss(inputs, totals, step.kl_coef, step.entropy_coef)


def _backward(step: Step, policy: Tensor, others: Sequence[tuple[StepPart, Tensor]], last: bool) -> None:
    """Run backward passes: one on each engine that is trained. others: the losses of parts."""
    on_policy = [policy] if step.policy_learns else []
    for part, loss in others:
        if part.engine is not None:
            part.engine.backward(loss, last)
        else:
            on_policy.append(loss)
    if on_policy:
        step.engine.backward(sum(on_policy[1:], on_policy[0]), last)


def loss_inputs(step: Step, share: Share, micro: Rows, outputs: dict[str, Tensor]) -> LossInputs:
    """Return what the loss reads for one micro-batch. An empty one is a fully masked row."""
    logp, batch = outputs["logp"], step.batch
    device = logp.device
    group = batch.group[micro.indices] if micro.indices else torch.zeros(1, dtype=torch.long)
    scores = [batch.row(row).reward for row in micro.indices] or [0.0]
    own = [not batch.row(row).peer for row in micro.indices]
    named: dict[str, Any] = share.padded(micro, device)
    named.setdefault("proximal_logp", logp.detach())
    named |= {name: outputs[name] for name in step.auxiliary.gives if name in outputs}
    return LossInputs.of(
        named
        | {
            "logp": logp,
            "entropy": outputs.get("entropy"),
            "mask": micro.mask.to(device),
            "behavior_logp": micro.behavior_logp.to(device),
            "versions": micro.versions.to(device),
            "turn_ids": micro.turn_ids.to(device),
            "current_version": batch.step,
            "scores": torch.tensor(scores, device=device),
            "group": group.to(device),
            "own_rows": None if all(own) else torch.tensor(own, device=device),
            "statistics": {name: value.to(device) for name, value in step.tensors.statistics.items()},
        }
    )


def _totals(step: Step, rows: Sequence[int]) -> Totals:
    """Count tokens and sequences of one optimizer step, rejected ones left out if asked. A collective."""
    horizon = step.objective.horizon or step.settings.horizon
    counts = step.batch.counts[list(rows)]
    if step.objective.shrinks_denominator:
        counts = np.array(step.engine.on_first(lambda: _kept_counts(step, list(rows))), np.int64)
    return totals_of(torch.from_numpy(counts), step.batch.group[list(rows)], horizon)


def _kept_counts(step: Step, rows: list[int]) -> list[int]:
    """Return how many tokens of each row no correction rejects. On the first rank."""
    inputs = step.auxiliary.whole_inputs(step.batch, step.tensors, rows)
    return step.objective.kept_mask(inputs).sum(-1).tolist()


def ratio_statistics(step: Step, rows: Sequence[int]) -> dict[str, Tensor]:
    """Measure what must not depend on the optimizer step's cut into micro-batches. A collective."""
    objective, engine, batch = step.objective, step.engine, step.batch
    if not objective.needs_ratio_statistics:
        return {}
    chosen = list(rows)
    # Without a proximal policy from the start of the step its first optimizer step is the only one, and the proximal
    # policy the current one.
    only = "step_start" in objective.needs and "proximal_logp" not in engine.on_first(
        lambda: list(step.tensors.tensors)
    )
    logp: Ragged | None = None
    if not only:
        temperature = step.settings.temperature
        logp = whole_batch(
            engine, batch, step.settings,
            lambda one: engine.outputs(one.token_ids, one.mask, temperature, extras=one.extras),
            ("logp",), chosen,
        )["logp"]  # fmt: skip

    def on_first_rank() -> dict[str, float]:
        log_ratio = torch.zeros(int(batch.counts[chosen].sum()))
        if logp is not None:
            inputs = step.auxiliary.whole_inputs(batch, step.tensors, chosen, logp)
            log_ratio = objective.with_proximal(inputs).log_ratio[inputs.mask]
        return {name: float(value) for name, value in objective.ratio_statistics(log_ratio).items()}

    found = engine.on_first(on_first_rank)
    return {name: torch.tensor(value, device=engine.device) for name, value in found.items()}
