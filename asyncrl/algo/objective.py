"""The `algo` section of a recipe as two functions: advantages of a whole step, loss of a micro-batch.

objective = build_objective(recipe["algo"])
estimate = objective.estimate(batch)                   # once per step, or by groups where `group_local`
statistics = objective.step_statistics(step_inputs)    # only if "step_statistics" in objective.needs
totals = count_totals(mask, group, objective.horizon)  # over all ranks; see `kept_mask`
loss, metrics = objective.loss(inputs, totals)         # per micro-batch; then loss.backward()
report = objective.report(reduce_over_ranks(merge(parts), all_reduce))
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.aggregate import Aggregation, aggregate
from asyncrl.algo.diagnostics.advantages import advantage_metrics
from asyncrl.algo.diagnostics.ess import derive, ess_metrics
from asyncrl.algo.diagnostics.mismatch import divergence, ratio_split
from asyncrl.algo.diagnostics.token_lags import metrics_by_lag
from asyncrl.algo.inputs import LossInputs, LossOutputs, Totals, positive_tokens
from asyncrl.algo.metrics import Metrics, extreme_over, mean_over, sum_of, values
from asyncrl.algo.needs import marks_of
from asyncrl.algo.ops import bounded_ratio
from asyncrl.algo.registry import resolve
from asyncrl.algo.settings import loss_parts, needed, resolve_settings

Correction = tuple[str, Callable[[LossInputs], Tensor]]
Measure = Callable[[Any], Mapping[str, Tensor]]


@dataclasses.dataclass(frozen=True, slots=True)
class Objective:
    """Everything a recipe's `algo` section says, ready to call. Build it with `build_objective`."""

    settings: dict[str, Any]
    needs: frozenset[str]
    """Words of `asyncrl.algo.needs.KNOWN`."""
    advantage_fn: Callable[[AdvantageBatch], Tensor | AdvantageOutputs]
    normalize_fn: Callable[[Tensor, Tensor], Tensor]
    loss_fn: Callable[[LossInputs], LossOutputs]
    corrections: tuple[Correction, ...]
    aggregation: Aggregation
    proximal_fn: Callable[[LossInputs], Tensor]
    kl_fn: Callable[[Tensor, Tensor], Tensor]
    shapings: tuple[Callable[[AdvantageBatch], Tensor], ...]
    filters: tuple[Callable[[AdvantageBatch], Tensor], ...]
    step_measures: tuple[Measure, ...]
    """What `@step_statistics` of the loss and the corrections measures."""
    ratio_measures: tuple[Measure, ...]
    """What `@ratio_statistics` of the loss and the corrections measures."""

    @property
    def needs_proximal(self) -> bool:
        """True when the advantage, the loss or a correction reads a proximal policy."""
        return "proximal" in self.needs

    @property
    def proximal_form(self) -> str:
        """The name of the proximal form in use, `none` when no part reads a proximal policy. For the log."""
        return self.settings["proximal"]["name"] if self.needs_proximal else "none"

    def params(self, kind: str) -> dict[str, Any]:
        """The parameters of the loss, the advantage or another single part, its defaults included."""
        return _params(kind, self.settings[kind])

    @property
    def discount(self) -> float:
        """The gamma of the advantage estimator, 1 where it has none."""
        return float(self.params("advantage").get("gamma", 1.0))

    @property
    def needs_values(self) -> bool:
        return "values" in self.needs

    @property
    def needs_entropy(self) -> bool:
        return "entropy" in self.needs

    @property
    def group_local(self) -> bool:
        """True when the advantage of a row depends on nothing beyond its group: `estimate` may be called by group."""
        parts = [("advantage", self.settings["advantage"]), ("normalize", self.settings["normalize"])]
        parts += [("filter", part) for part in self.settings["filters"]]
        return all(_within_group(kind, part) for kind, part in parts)

    def weighed_by_advantage(self, kl_coef: float | None = None, entropy_coef: float | None = None) -> bool:
        """True when rows whose advantages are all 0 have no gradient: the loss is marked so, and no other term is added
        to it under these coefficients, which are those of `loss`."""
        marks = marks_of(resolve("loss", self.settings["loss"]["name"]))
        others = self.needs_values or any(self._coefs(kl_coef, entropy_coef).values())
        return any(mark.decorator == "weighed_by_advantage" for mark in marks) and not others

    @property
    def needs_step_statistics(self) -> bool:
        """True when the loss or a correction uses a quantity of the whole step, as a threshold or a mean weight."""
        return "step_statistics" in self.needs

    @property
    def needs_ratio_statistics(self) -> bool:
        """True when the loss or a correction uses a quantity of the ratios of each optimizer step."""
        return "ratio_statistics" in self.needs

    @property
    def shrinks_denominator(self) -> bool:
        """True with `denominator: kept`: totals must then be counted on `kept_mask`."""
        return self.settings["denominator"] == "kept"

    @property
    def horizon(self) -> float:
        """Fixed length for `Totals.horizon`, 0 when the aggregation has none."""
        return float(self.settings["aggregation"].get("horizon", 0.0))

    @property
    def kl_coef(self) -> float:
        """Coefficient at the start; an adaptive one is passed to `loss` and `estimate`."""
        return float(self.settings["kl"]["coef"])

    @property
    def entropy_coef(self) -> float:
        """Coefficient of the entropy at the start; an adaptive one is passed to `loss`."""
        return float(self.settings["entropy_coef"])

    @torch.no_grad()
    def estimate(self, batch: AdvantageBatch, kl_coef: float | None = None) -> AdvantageOutputs:
        """Advantages, which rows stay and what else the estimator says, for the whole step's batch.

        Shaping is added to the rewards, KL in the reward is subtracted, then the estimator and normalisation
        run. Rows that a filter drops keep their share in group statistics and get `keep` False and
        advantage 0; a filter that weighs rows multiplies the normalised advantages.
        """
        for shape in self.shapings:
            batch = dataclasses.replace(batch, rewards=batch.rewards + shape(batch))
        row_weight = torch.ones_like(batch.rewards)
        for weigh in self.filters:
            row_weight = row_weight * weigh(batch)
        keep = row_weight > 0
        batch = self._with_kl_in_reward(batch, self.kl_coef if kl_coef is None else kl_coef)
        if self.settings["baseline_unit"] == "episodes":
            from asyncrl.algo.advantage.episode_wise import episode_wise

            found = episode_wise(self.advantage_fn, batch)
        else:
            found = self.advantage_fn(batch)
        outputs = found if isinstance(found, AdvantageOutputs) else AdvantageOutputs(found)
        keep = keep if outputs.keep is None else keep & outputs.keep
        kept_tokens = batch.mask & keep.unsqueeze(-1)
        advantages = self.normalize_fn(outputs.advantages * kept_tokens, kept_tokens)
        advantages = advantages * row_weight.unsqueeze(-1)
        metrics = outputs.metrics | advantage_metrics(batch, advantages, keep)
        return dataclasses.replace(outputs, advantages=advantages, keep=keep, metrics=metrics)

    def _with_kl_in_reward(self, batch: AdvantageBatch, coef: float) -> AdvantageBatch:
        if self.settings["kl"]["where"] != "reward" or not coef:
            return batch
        kl = self.kl_fn(batch.need("old_logp"), batch.need("reference_logp"))
        return dataclasses.replace(batch, token_penalty=coef * kl * batch.mask)

    def loss(
        self,
        inputs: LossInputs,
        totals: Totals,
        kl_coef: float | None = None,
        entropy_coef: float | None = None,
    ) -> tuple[Tensor, Metrics]:
        """This micro-batch's share of the step's loss, and its metrics.

        Raises ValueError naming the tensor (and row) that holds NaN or infinity on a sampled token, or is missing.
        """
        inputs.check_finite()
        inputs = self.with_proximal(inputs)
        outputs = self.loss_fn(inputs)
        weight, metrics = self.correction_weight(inputs)
        token_loss = outputs.token_loss if weight is None else outputs.token_loss * weight
        mask = inputs.mask if weight is None or not self.shrinks_denominator else inputs.mask & (weight != 0)
        policy = aggregate(self.aggregation, token_loss, mask, totals, inputs.group)
        metrics |= outputs.metrics | {"loss/policy": sum_of(policy)}
        total = policy
        coefs = self._coefs(kl_coef, entropy_coef)
        for name, term in self._regularisers(inputs, coefs).items():
            value = aggregate(self.aggregation, term, inputs.mask, totals, inputs.group)
            metrics[f"loss/{name}"] = sum_of(value)
            metrics[name] = mean_over(term, inputs.mask)
            total = total + coefs[name] * value
        return total, metrics | self._diagnostics(inputs, outputs, weight) | {"loss/total": sum_of(total)}

    def with_proximal(self, inputs: LossInputs) -> LossInputs:
        """The inputs with `proximal_logp` from the chosen form, without gradient."""
        if not self.needs_proximal:
            return inputs
        return dataclasses.replace(inputs, proximal_logp=self.proximal_fn(inputs).detach())

    @torch.no_grad()
    def correction_weight(self, inputs: LossInputs) -> tuple[Tensor | None, Metrics]:
        """Product of all corrections [B,T], or None without any; with weight and rejection metrics."""
        product: Tensor | None = None
        metrics: Metrics = {}
        for name, correct in self.corrections:
            weight = correct(inputs)
            metrics[f"correction/{name}/rejected_fraction"] = mean_over(weight == 0, inputs.mask)
            metrics[f"correction/{name}/weight"] = mean_over(weight, inputs.mask)
            metrics[f"correction/{name}/weight_max"] = extreme_over(weight, inputs.mask)
            product = weight if product is None else product * weight
        return product, metrics

    @torch.no_grad()
    def kept_mask(self, inputs: LossInputs) -> Tensor:
        """[B,T] tokens that no correction rejects, for totals with `denominator: kept`.

        Computed before the first micro-batch, so a correction on the current policy sees the proximal one.
        """
        inputs = self.with_proximal(inputs)
        weight, _ = self.correction_weight(dataclasses.replace(inputs, logp=inputs.need("proximal_logp")))
        return inputs.mask if weight is None else inputs.mask & (weight != 0)

    @torch.no_grad()
    def step_statistics(self, inputs: LossInputs) -> dict[str, Tensor]:
        """Scalars for `LossInputs.statistics`, from the log-probabilities of the whole step on all ranks."""
        inputs = self.with_proximal(inputs)
        return {name: value for measure in self.step_measures for name, value in measure(inputs).items()}

    @torch.no_grad()
    def ratio_statistics(self, log_ratio: Tensor) -> dict[str, Tensor]:
        """Scalars for `LossInputs.statistics`, from log pi - log pi_proximal [N] of one optimizer step's tokens."""
        return {name: value for measure in self.ratio_measures for name, value in measure(log_ratio).items()}

    def _coefs(self, kl_coef: float | None, entropy_coef: float | None) -> dict[str, float]:
        """Return the coefficients of the terms that may be added to the policy's loss."""
        coefs = {"entropy": -(self.entropy_coef if entropy_coef is None else entropy_coef)}
        if self.settings["kl"]["where"] == "loss" and "reference" in self.needs:
            coefs["reference_kl"] = self.kl_coef if kl_coef is None else kl_coef
        if self.settings["success_nll_coef"]:
            coefs["success_nll"] = float(self.settings["success_nll_coef"])
        return coefs

    def _regularisers(self, inputs: LossInputs, coefs: Mapping[str, float]) -> dict[str, Tensor]:
        """Return the terms that these inputs allow, [B,T] each."""
        terms: dict[str, Tensor] = {}
        if "reference_kl" in coefs and inputs.reference_logp is not None:
            kl = self.kl_fn(inputs.logp, inputs.reference_logp.detach())
            if self.settings["kl"]["unbiased"]:
                kl = kl * bounded_ratio(inputs.behavior_log_ratio)
            terms["reference_kl"] = kl
        if "success_nll" in coefs:
            terms["success_nll"] = -inputs.logp * positive_tokens(inputs)
        if inputs.entropy is not None:
            terms["entropy"] = inputs.entropy
        return terms

    @torch.no_grad()
    def _diagnostics(self, inputs: LossInputs, outputs: LossOutputs, weight: Tensor | None) -> Metrics:
        found: Metrics = {"tokens": sum_of(inputs.mask.sum()), "sequences": sum_of(inputs.mask.any(-1).sum())}
        inputs = inputs.own
        if inputs.proximal_logp is not None and inputs.behavior_logp is not None:
            found |= divergence(inputs.proximal_logp, inputs.behavior_logp, inputs.mask)
            found |= ess_metrics(inputs.mismatch_log_ratio, inputs.mask)
            found |= ratio_split(inputs)
        return found | metrics_by_lag(inputs, outputs, weight)

    def report(self, metrics: Metrics) -> dict[str, float]:
        """Plain numbers, effective sample sizes included, of metrics merged over micro-batches and ranks."""
        return derive(values(metrics))


def build_objective(algo: Any) -> Objective:
    """Objective of an `algo` section (a mapping or dataclass, see `asyncrl.algo.settings`).

    Raises ConfigError naming the key, the value and what is allowed.
    """
    chosen = resolve_settings(algo)
    aggregation = {k: v for k, v in chosen["aggregation"].items() if k != "horizon"}
    return Objective(
        settings=chosen,
        needs=needed(chosen),
        advantage_fn=_bind("advantage", chosen["advantage"]),
        normalize_fn=_bind("normalize", chosen["normalize"]),
        loss_fn=_bind("loss", chosen["loss"]),
        corrections=tuple((part["name"], _bind("correction", part)) for part in chosen["corrections"]),
        aggregation=_bind("aggregation", aggregation),
        proximal_fn=_bind("proximal", chosen["proximal"]),
        kl_fn=resolve("kl", chosen["kl"]["estimator"]),
        shapings=tuple(_bind("shaping", part) for part in chosen["shaping"]),
        filters=tuple(_bind("filter", part) for part in chosen["filters"]),
        step_measures=_measures(chosen, "step_statistics"),
        ratio_measures=_measures(chosen, "ratio_statistics"),
    )


def _bind(kind: str, part: dict[str, Any]) -> Callable[..., Any]:
    function = resolve(kind, part["name"])
    params = {name: value for name, value in part.items() if name != "name"}
    return partial(function, **params) if params else function


def _params(kind: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a part's function: those the recipe sets over its defaults."""
    found = inspect.signature(resolve(kind, part["name"])).parameters.values()
    defaults = {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
    return {**defaults, **{name: value for name, value in part.items() if name != "name"}}


def _within_group(kind: str, part: Mapping[str, Any]) -> bool:
    """Whether a part is marked `group_local` under its parameters."""
    marks = marks_of(resolve(kind, part["name"]))
    return any(m.decorator == "group_local" and m.failing(_params(kind, part)) is None for m in marks)


def _measures(settings: Mapping[str, Any], decorator: str) -> tuple[Measure, ...]:
    """What the marks of the loss and the corrections measure, each with its function's parameters."""
    found = []
    for kind, part in loss_parts(settings):
        params = _params(kind, part)
        for mark in marks_of(resolve(kind, part["name"])):
            if mark.decorator == decorator and mark.measure is not None and mark.failing(params) is None:
                read = inspect.signature(mark.measure).parameters
                found.append(partial(mark.measure, **{k: v for k, v in params.items() if k in read}))
    return tuple(found)
