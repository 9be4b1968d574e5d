"""One training step: advantages over the whole batch, then losses by micro-batch, then the optimizer.

`train_step` is the same for one rank or many. Every rank holds the whole batch (a few numbers a token) and
runs the model only on its own rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, NonFiniteError, Totals, count_totals
from asyncrl.algo.metrics import Metrics, merge, reduce_over_ranks
from asyncrl.algo.objective import Objective
from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.train.auxiliary_models import AuxiliaryModels, StepTensors, whole_batch
from asyncrl.train.auxiliary_weights import FrozenPolicy
from asyncrl.train.controls import Controls, EntropyController, KlController, mean_drift
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.router_replay import replaying
from asyncrl.train.step_batch import Rows, StepBatch, pad_rows, to_advantage_batch
from asyncrl.train.step_settings import StepSettings
from asyncrl.train.token_scores import TeacherStates


@dataclass(slots=True)
class StepReport:
    """What a step did."""

    metrics: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    num_sequences: int = 0
    skipped: str = ""
    """Why no optimizer step was taken, empty when one was."""
    poisoned: dict[int, str] = field(default_factory=dict)
    """Groups left out because they make the loss or gradient NaN or infinite: index in the batch to reason."""
    token_values: dict[str, Tensor] = field(default_factory=dict)
    """[B,T] float32, by column of the trajectories' table; empty where the step was streamed group by group."""


OnPoison = Callable[[dict[int, str]], None]
"""Called on every rank with groups found poisoned (index in the batch to reason), before the optimizer's step."""


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
    on_poison: OnPoison
    entropy_coef: float | None = None
    """None for the recipe's own."""
    entropies: Tensor | None = None
    """[B,T] where the objective computes entropies; micro-batches fill in those of their rows."""

    @property
    def critic_only(self) -> bool:
        critic = self.auxiliary.critic
        return critic is not None and critic.warming_up(self.batch.step)


def train_step(
    engine: TrainEngine,
    objective: Objective,
    auxiliary: AuxiliaryModels,
    batch: StepBatch,
    settings: StepSettings,
    learning_rate: float,
    controls: Controls | None = None,
    on_poison: OnPoison = lambda found: None,
) -> StepReport:
    """Train on one batch. A collective: call on every rank with the same batch.

    Groups that make the loss or the gradient NaN or infinite are left out, the same ones on every rank, and reported.
    Raises ValueError when what all rows share is not finite; nothing has been applied then.
    """
    controls = controls or Controls(
        KlController(objective.kl_coef), EntropyController(objective.entropy_coef)
    )
    tensors = auxiliary.step_tensors(engine, batch, settings, settings.num_minibatches)
    if controls.baselines is not None:
        tensors.rows["baselines"] = controls.baselines.baselines(batch)
    estimate = objective.estimate(to_advantage_batch(batch, tensors.for_advantages()), controls.kl.coef)
    auxiliary.measure(batch, tensors, estimate)
    count = len(batch.trajectories)
    keep = estimate.keep if estimate.keep is not None else torch.ones(count, dtype=torch.bool)
    kept = [row for row in range(count) if bool(keep[row])]
    if not kept:
        return StepReport(
            skipped="every trajectory was filtered out", metrics=objective.report(estimate.metrics)
        )
    log_ratio, rate, measured = _measure(batch, tensors, controls, learning_rate)
    step = Step(
        engine, objective, auxiliary, batch, tensors, settings, rate, controls.kl.coef, on_poison,
        controls.entropy.applied,
        torch.zeros_like(batch.whole.behavior_logp, device=engine.device) if objective.needs_entropy else None,
    )  # fmt: skip
    parts: list[Metrics] = []
    poisoned: dict[int, str] = {}
    norms = [
        _minibatch(step, rows, parts, poisoned)
        for rows in split_minibatches(batch, kept, settings.num_minibatches)
    ]
    if not parts:
        return StepReport(
            skipped="the loss or gradient was not finite",
            metrics=objective.report(estimate.metrics),
            poisoned=poisoned,
        )
    kept = [row for row in kept if int(batch.group[row]) not in poisoned]
    if controls.baselines is not None and log_ratio is not None:
        controls.baselines.update(batch, mean_drift(log_ratio, batch.whole.mask))
    metrics = objective.report(reduce_over_ranks(merge(parts), engine.all_reduce) | estimate.metrics)
    metrics |= measured | _reward_kl(objective, batch, tensors)
    metrics["grad_norm"] = max(norms)
    metrics["learning_rate"] = rate
    num_tokens = sum(batch.trajectories[row].num_sampled for row in kept)
    values = {"advantages": estimate.advantages}
    if tensors.policy_logp is not None:
        values["policy_logprobs"] = tensors.policy_logp
    if step.entropies is not None:
        values["entropies"] = _of_all_ranks(engine, step.entropies, kept)
    return StepReport(metrics, num_tokens, len(kept), poisoned=poisoned, token_values=values)


def _measure(
    batch: StepBatch, tensors: StepTensors, controls: Controls, learning_rate: float
) -> tuple[Tensor | None, float, dict[str, float]]:
    """Return log pi_start - log mu [B,T] where known, the step's learning rate and what decided it."""
    if tensors.policy_logp is None:
        return None, learning_rate, {}
    rows = batch.whole
    log_ratio = (tensors.policy_logp - rows.behavior_logp) * rows.mask
    rate, ess = controls.learning_rate(learning_rate, log_ratio, rows.mask)
    return (
        log_ratio,
        rate,
        {}
        if ess is None
        else {"lr_scaling/ess": ess, "lr_scaling/factor": rate / learning_rate if learning_rate else 1.0},
    )


def _of_all_ranks(engine: TrainEngine, values: Tensor, rows: Sequence[int]) -> Tensor:
    """Return values [B,T] of which each rank has computed some rows; NaN in those that none has. A collective."""
    engine.all_reduce(values)
    found = torch.full_like(values, torch.nan)
    found[rows] = values[rows]
    return found


def _reward_kl(objective: Objective, batch: StepBatch, tensors: StepTensors) -> dict[str, float]:
    """Mean token KL to the reference where it is part of the reward, for the log and the adaptive coefficient."""
    if objective.settings["kl"]["where"] != "reward" or "reference_logp" not in tensors.tensors:
        return {}
    mask = batch.whole.mask
    kl = objective.kl_fn(tensors.tensors["proximal_logp"], tensors.tensors["reference_logp"])
    return {"reference_kl": float((kl * mask).sum() / mask.sum().clamp(min=1))}


def _minibatch(step: Step, rows: Sequence[int], parts: list[Metrics], poisoned: dict[int, str]) -> float:
    """Take one optimizer step on `rows` less the groups that poison it; return the gradient norm, 0 without a step.

    To find them, each group is tried alone, without an optimizer step.
    """
    found, why = accumulate(step, rows)
    if why:
        discard(step)
        bad = _find_poison(step, rows) or {int(step.batch.group[row]): why for row in rows}
        poisoned.update(bad)
        step.on_poison(bad)
        rows = [row for row in rows if int(step.batch.group[row]) not in bad]
        found, why = accumulate(step, rows) if rows else ([], "")
        if why:
            # Each group alone is finite, all together are not.
            discard(step)
            bad = {int(step.batch.group[row]): why for row in rows}
            poisoned.update(bad)
            step.on_poison(bad)
            rows = []
    if not rows:
        return 0.0
    parts += found
    return apply(step)


def _find_poison(step: Step, rows: Sequence[int]) -> dict[int, str]:
    """Return the groups whose own loss or gradient is not finite, with what is wrong. A collective."""
    found = {}
    for group in sorted({int(step.batch.group[row]) for row in rows}):
        _, why = accumulate(step, [row for row in rows if int(step.batch.group[row]) == group])
        discard(step)
        if why:
            found[group] = why
    return found


def accumulate(
    step: Step, rows: Sequence[int], totals: Totals | None = None, last: bool = True
) -> tuple[list[Metrics], str]:
    """Accumulate the gradients of `rows`; return metrics, and what is not finite on any rank. A collective.

    `totals` are those of the optimizer step, counted over `rows` where not given; `last` says that no more follow.
    """
    engine, objective, batch = step.engine, step.objective, step.batch
    totals = totals or _totals(step, rows)
    statistics = _ratio_statistics(step, rows)
    lengths = [batch.trajectories[row].num_tokens for row in rows]
    units = [int(batch.group[row]) for row in rows] if "pairs" in objective.needs else None
    prefix_groups = [int(batch.group[row]) for row in rows] if engine.shares_prefixes else None
    plan = plan_micro_batches(
        lengths, step.settings.micro_batch_tokens, engine.num_ranks, units, prefix_groups
    )
    found: list[Metrics] = []
    why = ""
    mine = plan[engine.rank]
    for number, chosen in enumerate(mine):
        final = last and number == len(mine) - 1
        metrics, wrong = micro_batch(step, [rows[i] for i in chosen], totals, statistics, final)
        found.append(metrics)
        why = why or wrong
    problem = engine.any_text(why)
    if not problem and not all(one.finite() for one in _engines(step)):
        problem = "the gradient holds NaN or infinite values"
    return found, problem


def _engines(step: Step) -> list[TrainEngine]:
    critic = step.auxiliary.critic
    return [step.engine, *([critic.engine] if critic is not None and critic.engine is not None else [])]


def discard(step: Step) -> None:
    for engine in _engines(step):
        engine.discard()


def apply(step: Step, divide_by: float = 1.0) -> float:
    """Take the optimizer steps; return the largest gradient norm. The policy's gradient is divided by `divide_by`."""
    norms = [0.0]
    critic = step.auxiliary.critic
    if critic is not None and critic.engine is not None:
        norms.append(critic.engine.step(critic.config.learning_rate))
    if not step.critic_only or (critic is not None and critic.shared):
        norms.append(step.engine.step(step.learning_rate, divide_by))
    return max(norms)


def micro_batch(
    step: Step, rows: list[int], totals: Totals, statistics: dict[str, Tensor], last: bool
) -> tuple[Metrics, str]:
    """Run forward and backward on this rank's rows; return metrics, and what is not finite.

    A rank that finds something still runs the backward pass, since other ranks may wait in it.
    """
    engine, critic = step.engine, step.auxiliary.critic
    micro = pad_rows(step.batch, rows)
    want = _want(step)
    teacher = _teacher_states(step, micro)
    learns = not step.critic_only or (critic is not None and critic.shared)
    with torch.set_grad_enabled(learns), replaying(micro.routed_experts):
        outputs = engine.outputs(micro.token_ids, micro.mask, step.settings.temperature, want, teacher)
    if step.entropies is not None and micro.indices:
        step.entropies[micro.indices, : micro.mask.shape[1]] = outputs["entropy"].detach().float()
    inputs = loss_inputs(step.batch, micro, outputs, step.tensors)
    inputs = dataclasses.replace(inputs, statistics=inputs.statistics | statistics)
    values = None
    if critic is not None:
        values = (
            outputs["values"] if critic.shared else critic.outputs(engine, micro.token_ids, micro.mask)[0]
        )
    try:
        policy, value, metrics = _losses(step, inputs, values, totals)
    except NonFiniteError as error:
        policy, value = 0 * outputs["logp"].sum(), None if values is None else 0 * values.sum()
        _backward(step, policy, value, last)
        return {}, _of_trajectory(step.batch, rows, error)
    _backward(step, policy, value, last)
    total = policy.detach() + (value.detach() if value is not None else 0)
    return metrics, "" if bool(torch.isfinite(total)) else f"the loss is {float(total)}"


def _of_trajectory(batch: StepBatch, rows: Sequence[int], error: NonFiniteError) -> str:
    """Say what is not finite, and of which trajectory."""
    if error.row >= len(rows):
        return str(error)
    trajectory = batch.trajectories[rows[error.row]]
    return f"{error.name} of task {trajectory.task_id} episode {trajectory.episode_index} {error.problem}"


def _losses(
    step: Step, inputs: LossInputs, values: Tensor | None, totals: Totals
) -> tuple[Tensor, Tensor | None, Metrics]:
    """Return this micro-batch's policy loss, value loss and metrics. Raises `NonFiniteError`."""
    objective = step.objective
    value: Tensor | None = None
    metrics: Metrics = {}
    if values is not None:
        value, metrics = objective.value_term(dataclasses.replace(inputs, values=values), totals)
    if step.critic_only:
        return torch.zeros((), device=step.engine.device), value, metrics
    policy, found = objective.loss(inputs, totals, step.kl_coef, step.entropy_coef)
    return policy, value, found | metrics


def _backward(step: Step, policy: Tensor, value: Tensor | None, last: bool) -> None:
    critic = step.auxiliary.critic
    if critic is not None and critic.engine is not None and value is not None:
        critic.engine.backward(value, last)
    if critic is not None and critic.shared and value is not None:
        step.engine.backward(value if step.critic_only else policy + value, last)
    elif not step.critic_only:
        step.engine.backward(policy, last)


def _want(step: Step) -> tuple[str, ...]:
    """Return what the trained model must compute besides log-probabilities."""
    want = []
    if step.objective.needs_entropy:
        want.append("entropy")
    if "teacher_logits" in step.objective.needs:
        want.append("teacher_kl")
    if step.auxiliary.critic is not None and step.auxiliary.critic.shared:
        want.append("detached_values" if step.critic_only else "values")
    return tuple(want)


def _teacher_states(step: Step, micro: Rows) -> TeacherStates | None:
    """Return what the trained model needs of a teacher to compare whole distributions; None where it need not."""
    if "teacher_logits" not in step.objective.needs:
        return None
    teacher = step.auxiliary.teacher
    assert isinstance(teacher, FrozenPolicy)
    return teacher.states(step.engine, micro.token_ids, micro.mask, step.objective.teacher_direction)


def loss_inputs(
    batch: StepBatch, micro: Rows, outputs: dict[str, Tensor], tensors: StepTensors
) -> LossInputs:
    """Return what the loss reads for one micro-batch. An empty one is a fully masked row."""
    logp = outputs["logp"]
    width = micro.mask.shape[1]
    device = logp.device
    group = batch.group[micro.indices] if micro.indices else torch.zeros(1, dtype=torch.long)
    scores = batch.rewards[micro.indices] if micro.indices else torch.zeros(1)
    extras: dict[str, Any] = tensors.for_loss(micro.indices, width, device)
    extras.setdefault("proximal_logp", logp.detach())
    return LossInputs(
        logp=logp,
        entropy=outputs.get("entropy"),
        teacher_kl=outputs.get("teacher_kl"),
        mask=micro.mask.to(device),
        behavior_logp=micro.behavior_logp.to(device),
        versions=micro.versions.to(device),
        turn_ids=micro.turn_ids.to(device),
        current_version=batch.step,
        scores=scores.to(device),
        group=group.to(device),
        statistics={name: value.to(device) for name, value in tensors.statistics.items()},
        **extras,
    )


def split_minibatches(batch: StepBatch, rows: Sequence[int], count: int) -> list[list[int]]:
    """Deal whole groups to `count` minibatches in turn; groups stay together for pairwise losses."""
    groups = sorted({int(batch.group[row]) for row in rows})
    place = {group: number % count for number, group in enumerate(groups)}
    split: list[list[int]] = [[] for _ in range(count)]
    for row in rows:
        split[place[int(batch.group[row])]].append(row)
    return [part for part in split if part]


def _totals(step: Step, rows: Sequence[int]) -> Totals:
    """Count tokens and sequences of one optimizer step over all ranks, rejected ones left out if asked."""
    horizon = step.objective.horizon or step.settings.horizon
    mask = pad_rows(step.batch, rows).mask
    if step.objective.shrinks_denominator:
        kept = step.objective.kept_mask(step.auxiliary.whole_inputs(step.batch, step.tensors))
        mask = kept[list(rows), : mask.shape[1]]
    return count_totals(mask, step.batch.group[list(rows)], horizon)


def _ratio_statistics(step: Step, rows: Sequence[int]) -> dict[str, Tensor]:
    """Measure what must not depend on the optimizer step's cut into micro-batches. A collective."""
    objective, device = step.objective, step.engine.device
    if not objective.needs_ratio_statistics:
        return {}
    whole = step.auxiliary.whole_inputs(step.batch, step.tensors)
    mask = whole.mask[list(rows)]
    if "step_start" in objective.needs and "proximal_logp" not in step.tensors.tensors:
        # The only optimizer step of the batch: the proximal policy is the current one.
        log_ratio = torch.zeros(int(mask.sum()))
    else:
        temperature = step.settings.temperature
        logp = whole_batch(
            step.engine, step.batch, step.settings,
            lambda ids, mask: step.engine.outputs(ids, mask, temperature), ("logp",), list(rows),
        )["logp"]  # fmt: skip
        inputs = objective.with_proximal(dataclasses.replace(whole, logp=logp))
        log_ratio = inputs.log_ratio[list(rows)][mask]
    return {name: value.to(device) for name, value in objective.ratio_statistics(log_ratio).items()}
