"""Refuses batches that were not sampled from the policy: by their log-probabilities, and by commitments of engines.

Both are compared in one forward pass (`asyncrl.train.features.logprob_check`,
`asyncrl.train.features.commitment_check`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.config import Config
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.features.logprob_check import (
    Comparison,
    Tolerance,
    compare,
    comparison_metrics,
    disagreeing,
    disagreement,
    of_groups,
)
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import Refusal, TrainerCallback
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings

if TYPE_CHECKING:
    from asyncrl.train.features.commitment_check import Finding, States


class SampledCheck(TrainerCallback):
    """Compares each batch with the versions that are said to have sampled it, on all ranks.

    weights_dir: where the publisher leaves the weights of the previous version; None to check the newest one alone.
    """

    def __init__(self, config: Config, weights_dir: Path | None) -> None:
        self.config = config
        self.weights_dir = weights_dir
        self.comparisons: list[Comparison] = []
        """How the newest batch's log-probabilities compare with the trainer's."""
        self.commitments: list[Finding] = []
        """How its commitments compare with the trainer's hidden states."""

    def refuses(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Refusal | None:
        """If the buffer crashes and forgets a refusal, the batch comes again and fails the same check."""
        tolerance = Tolerance.of(self.config.train.max_logp_error)
        kept_kv = self.config.engine.keep_kv
        states: States | None = {} if self.config.train.commitments else None
        parts = compare(engine, batch, tolerance, settings, self.weights_dir, kept_kv, states)
        self.comparisons = of_groups(parts)
        wrong, engines = disagreeing(self.comparisons, tolerance), {}
        reasons, refused = [], [one.group for one in wrong]
        if wrong:
            from asyncrl.train.features.faulty_engine import faulty_engines

            reasons, engines = [disagreement(wrong, batch.step, tolerance)], faulty_engines(parts, tolerance)
        if states is not None and (forged := self._forged(engine, batch, states)):
            reasons.append(forged.reason)
            refused, engines = [*refused, *forged.groups], {}
        self._keep(engine, None if reasons else batch.step)
        return Refusal(list(dict.fromkeys(refused)), "; ".join(reasons), engines) if reasons else None

    def _keep(self, engine: TrainEngine, version: int | None) -> None:
        """Have ranks that share the weights keep them for tokens of this version in the next step's batch, before the
        step changes them; None: the batch was refused, and there is no step."""
        limit = self.config.buffer.max_staleness
        wanted = self.weights_dir is not None and limit > 0 and self.config.train.max_logp_error > 0
        if not wanted or engine.stage != 3 or engine.layout.ranks > 1:
            return
        if version is None:
            engine.kept_shares.forget_trained()
        else:
            engine.kept_shares.keep(version)

    def _forged(self, engine: TrainEngine, batch: StepBatch, states: States) -> Refusal | None:
        """Return why groups are refused whose commitments are not to the trainer's hidden states."""
        from asyncrl.train.features.commitment_check import ALLOWED, Finding, examine, unfit, unfit_reason

        self.commitments = [Finding(*one) for one in engine.on_first(lambda: examine(batch, states))]
        allowed = ALLOWED[engine.states_dtype]
        forged = unfit(self.commitments, allowed)
        return (
            Refusal([one.group for one in forged], unfit_reason(forged, batch.step, allowed))
            if forged
            else None
        )

    def metrics(self, step: int) -> Mapping[str, Any]:
        found = dict(comparison_metrics(self.comparisons))
        if self.config.train.commitments:
            from asyncrl.train.features.commitment_check import commitment_metrics

            found |= commitment_metrics(self.commitments)
        return found


def sampled_check(context: CallbackContext) -> SampledCheck:
    """Return the callback of a run."""
    return SampledCheck(context.config, context.arguments.weights_dir)
