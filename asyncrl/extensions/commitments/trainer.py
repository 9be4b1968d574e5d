"""The trainer's side: batches are refused whose commitments are not to the hidden states of the policy they name."""

from __future__ import annotations

from asyncrl.extensions.commitments.findings import (
    ALLOWED,
    Finding,
    commitment_metrics,
    examine,
    unfit,
    unfit_reason,
)
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.features.logprob_check import Computed
from asyncrl.train.features.sampled_check import OutputCheck
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import Refusal
from asyncrl.train.step.step_batch import StepBatch


class CommitmentCheck(OutputCheck):
    """Compares each batch's commitments with the states of the pass that computes its tokens again."""

    output = "states"

    def __init__(self) -> None:
        self.found: list[Finding] = []
        """How the newest batch's commitments compare."""

    def refuses(self, engine: TrainEngine, batch: StepBatch, computed: Computed) -> Refusal | None:
        """See `OutputCheck`. Nobody knows which engine of several has other weights, so the workers are blamed."""
        self.found = [Finding(*one) for one in engine.on_first(lambda: examine(batch, computed))]
        allowed = ALLOWED[engine.states_dtype]
        forged = unfit(self.found, allowed)
        if not forged:
            return None
        return Refusal([one.group for one in forged], unfit_reason(forged, batch.step, allowed))

    def metrics(self) -> dict[str, float]:
        """See `OutputCheck`."""
        return commitment_metrics(self.found)


def commitment_check(context: CallbackContext) -> CommitmentCheck:
    """Return the check of a run with `train.commitments`."""
    return CommitmentCheck()
