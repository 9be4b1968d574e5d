"""A step whose gradient is accumulated group by group while the rest of its batch is still being generated.

What divides the loss (tokens, sequences or prompts of the whole batch) is known only when the last group is there.
Groups are therefore accumulated with a divisor of one, and the gradient is divided before the optimizer's step: the
same gradient as the whole batch's, for every aggregation in `asyncrl.algo.aggregate`, since each divides by one number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from asyncrl.algo.inputs import Totals, totals_of
from asyncrl.algo.metrics import Metric, Metrics, merge, reduce_over_ranks
from asyncrl.algo.objective import Objective
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.gradient import Step, accumulate, apply, discard, micro_batch, serve
from asyncrl.train.step.serve_rows import end_of_step, share_batch
from asyncrl.train.step.step import StepReport, decide
from asyncrl.train.step.step_batch import StepBatch, build_step_batch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import Group


@dataclass(slots=True)
class StreamedStep:
    """A step in progress. Every method is a collective: call it on every rank."""

    engine: TrainEngine
    objective: Objective
    auxiliary: AuxiliaryModels
    settings: StepSettings
    version: int
    learning_rate: float
    kl_coef: float
    entropy_coef: float | None = None
    seen: list[str] = field(default_factory=list)
    """Leases of the groups that are in the gradient."""
    _parts: list[Metrics] = field(default_factory=list)
    _estimates: list[Metrics] = field(default_factory=list)
    _totals: Totals = field(default_factory=lambda: Totals(0, 0, 0, 0.0, 0))
    _last: Step | None = None
    _wrong: str = ""

    def add(self, groups: Sequence[Group]) -> None:
        """Add the gradients of these groups, which the first rank has; on the others they are empty."""
        first = self.engine.rank == 0
        batch = share_batch(self.engine, build_step_batch(groups, self.version, 0) if first else None)
        self.seen += batch.group_ids
        tensors = self.auxiliary.step_tensors(self.engine, batch, self.settings, 1)
        decided = decide(self.engine, self.objective, self.auxiliary, batch, tensors, self.kl_coef)
        self._estimates.append(decided.metrics)
        rows = decided.kept
        if rows and not self._wrong:
            step = Step(
                self.engine, self.objective, self.auxiliary, batch, tensors, self.settings,
                self.learning_rate, self.kl_coef, lambda found: None, self.entropy_coef,
            )  # fmt: skip
            counted = totals_of(torch.from_numpy(batch.counts[rows]), batch.group[rows], self._horizon)
            parts, self._wrong = accumulate(step, rows, undivided(counted), last=False)
            self._parts += parts
            self._totals = added(self._totals, counted)
            self._last = step

    def finish(self, batch: StepBatch) -> StepReport | None:
        """Take the optimizer's step on exactly the groups of `batch`, as `share_batch` gives it.

        None, with the gradient forgotten, when they are not those that were added, when nothing of them is trained or
        when something was not finite: the whole batch is then to be trained as if nothing had been streamed.
        """
        if set(batch.group_ids) - set(self.seen):
            self.add([group for group in batch.groups if group.id not in self.seen])
        step = self._last
        if step is None or self._wrong or set(batch.group_ids) != set(self.seen):
            self.abandon()
            return None
        share = serve(step, end_of_step(self.engine))
        micro_batch(step, share, [], undivided(self._totals), {}, True)
        divide_by = divisor(self.objective, self._totals, self._horizon)
        norm = apply(step, divide_by)
        merged = reduce_over_ranks(merge(self._parts), self.engine.sum_shares)
        metrics = self.objective.report(divided(merged, divide_by) | merge(self._estimates))
        metrics |= {"grad_norm": norm, "learning_rate": self.learning_rate}
        return StepReport(metrics, int(self._totals.num_tokens), int(self._totals.num_rows))

    def abandon(self) -> None:
        """Forget the gradient."""
        if self._last is not None:
            discard(self._last)

    @property
    def _horizon(self) -> float:
        return self.objective.horizon or self.settings.horizon


def undivided(totals: Totals) -> Totals:
    """Totals whose counts over the step are one; a prompt's own tokens and the fixed length stay."""
    return Totals(1.0, 1.0, 1.0, totals.horizon, 1.0, totals.prompt_tokens)


def added(a: Totals, b: Totals) -> Totals:
    """Add counts of different groups."""
    return dataclasses.replace(
        b,
        num_tokens=a.num_tokens + b.num_tokens,
        num_sequences=a.num_sequences + b.num_sequences,
        num_prompts=a.num_prompts + b.num_prompts,
        num_rows=a.num_rows + b.num_rows,
    )


def divisor(objective: Objective, totals: Totals, horizon: float) -> float:
    """Return what the objective's aggregation divides by over the step, not counting divisors within a sequence."""
    one, group = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    whole = dataclasses.replace(totals, horizon=horizon, prompt_tokens=one)
    unit = undivided(whole)
    return float(objective.aggregation(one, unit, group) / objective.aggregation(one, whole, group))


def divided(metrics: Metrics, divide_by: float) -> Metrics:
    """Divide the parts of the loss, which were summed undivided."""
    return {
        name: Metric(metric.total / divide_by, metric.count, metric.kind)
        if name.startswith("loss/")
        else metric
        for name, metric in metrics.items()
    }
