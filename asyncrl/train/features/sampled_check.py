"""Refuses batches that were not sampled from the policy.

Their log-probabilities are compared (`asyncrl.train.features.logprob_check`), and whatever else extensions compare with
outputs of the same forward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from asyncrl.config import Config
from asyncrl.errors import UnavailableError
from asyncrl.extensions.table import rows
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.features.logprob_check import (
    Comparison,
    Computed,
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
from asyncrl.weights.files import weights_path, write_weights

log = logging.getLogger(__name__)


class OutputCheck(Protocol):
    """What an extension compares of a batch with an output of the pass that computes its tokens again."""

    output: ClassVar[str]
    """The output of `TrainEngine.outputs` that it reads; several may read one."""

    def refuses(self, engine: TrainEngine, batch: StepBatch, computed: Computed) -> Refusal | None:
        """Return why groups are refused, for which their workers are blamed; None where they may be trained. A
        collective, equal on all ranks.

        computed: filled on the first rank alone.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the newest batch."""
        ...


class SampledCheck(TrainerCallback):
    """Compares each batch with the versions that are said to have sampled it, on all ranks.

    weights_dir: where the publisher leaves the weights of the previous version; None to check the newest one alone.
    further: what else is compared in the same pass.
    """

    def __init__(self, config: Config, weights_dir: Path | None, further: Sequence[OutputCheck] = ()) -> None:
        self.config = config
        self.weights_dir = weights_dir
        self.further = further
        self.comparisons: list[Comparison] = []
        """How the newest batch's log-probabilities compare with the trainer's."""
        self._earlier = compared_versions(config) if weights_dir is not None else 0
        self._is_first = True

    def refuses(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Refusal | None:
        """If the buffer crashes and forgets a refusal, the batch comes again and fails the same check."""
        tolerance = Tolerance.of(self.config.train.max_logp_error)
        kept_kv = self.config.engine.keep_kv
        outputs: dict[str, Computed] = {one.output: {} for one in self.further}
        parts = compare(engine, batch, tolerance, settings, self.weights_dir, kept_kv, outputs)
        self.comparisons = of_groups(parts)
        wrong, engines = disagreeing(self.comparisons, tolerance), {}
        reasons, refused = [], [one.group for one in wrong]
        if wrong:
            from asyncrl.train.features.faulty_engine import faulty_engines

            reasons, engines = [disagreement(wrong, batch.step, tolerance)], faulty_engines(parts, tolerance)
        for one in self.further:
            if found := one.refuses(engine, batch, outputs[one.output]):
                reasons.append(found.reason)
                refused, engines = [*refused, *found.groups], {}
        self._keep(engine, None if reasons else batch.step)
        return Refusal(list(dict.fromkeys(refused)), "; ".join(reasons), engines) if reasons else None

    def _keep(self, engine: TrainEngine, version: int | None) -> None:
        """Keep the weights for tokens of this version in later batches before the step changes them: ranks that share
        them their shares, all others what no publisher has written. None: the batch was refused, there is no step."""
        if not self._earlier or engine.layout.ranks > 1:
            return
        if engine.stage != 3:
            if version is not None and self._is_first:
                self._write(engine, version)
                self._is_first = False
        elif version is None:
            engine.kept_shares.forget_trained()
        else:
            engine.kept_shares.keep(version)

    def _write(self, engine: TrainEngine, version: int) -> None:
        """Write the weights that training starts from where the publisher writes later ones, unless they are there.

        Nothing is published in the background before the first step.
        """
        assert self.weights_dir is not None
        path = weights_path(self.weights_dir, version)
        if not engine.on_first(lambda: not path.exists()):
            return
        tensors = engine.checkpoint()
        if engine.rank != 0:
            for _ in tensors:
                pass
            return
        try:
            write_weights(self.weights_dir, version, tensors)
        except UnavailableError as error:
            log.warning(
                "log-probabilities of tokens of version %d are not compared later: %s", version, error
            )

    def metrics(self, step: int) -> Mapping[str, Any]:
        found = dict(comparison_metrics(self.comparisons))
        for one in self.further:
            found |= one.metrics()
        return found


def compared_versions(config: Config) -> int:
    """Return how many versions before the trained one are compared, where their weights are there."""
    if not config.train.max_logp_error:
        return 0
    # Under ZeRO-3 each further version would be gathered and spread once more.
    return (
        min(config.buffer.max_staleness, 1) if config.train.zero_stage == 3 else config.buffer.max_staleness
    )


def sampled_check(context: CallbackContext) -> SampledCheck:
    """Return the callback of a run."""
    further = [row.load()(context) for row in rows("sampled_checks") if row.wanted(context)]
    return SampledCheck(context.config, context.arguments.weights_dir, further)
