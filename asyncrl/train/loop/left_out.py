"""Groups that make the loss or gradient of a step not finite: kept by who keeps them, and taken out of the batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.config import TrainConfig
from asyncrl.errors import StopError
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.batches import BatchSource
from asyncrl.train.loop.callbacks import TrainerCallback
from asyncrl.train.step.step_batch import StepBatch

log = logging.getLogger("asyncrl.train")


def leave_out(
    batch: StepBatch,
    found: Mapping[int, str],
    engines: Mapping[str, TrainEngine],
    state: Mapping[str, Any],
    callbacks: Sequence[TrainerCallback],
    source: BatchSource | None,
    config: TrainConfig,
) -> None:
    """Have callbacks save poisoned groups, and the buffer drop them. A collective; `source` is rank 0's.

    found: what is wrong with groups, by their index in the batch. engines: those that the step trains, the policy's
    first. Raises `StopError` where the run is to stop.
    """
    wrong = {batch.group_ids[index]: why for index, why in found.items()}
    kept = [one.poisoned(batch, wrong, engines, state) for one in callbacks]
    path = next((file for file in kept if file is not None), None)
    message = "; ".join(f"group {group}: {why}" for group, why in wrong.items())
    if source is not None:
        log.error("step %d leaves out poisoned groups (%s), kept in %s", batch.step, message, path)
        source.drop(batch.step, list(wrong), "poison")
    next(iter(engines.values())).barrier()
    if config.on_poison == "stop":
        raise StopError(f"step {batch.step}: {message}; train.on_poison is 'stop'")
