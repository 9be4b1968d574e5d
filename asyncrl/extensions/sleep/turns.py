"""Engines and trainer that use the same GPU memory by turns (docs/placement.md).

    trainer takes a batch -> engines sleep -> its states return -> train, write weights
    -> its states leave -> engines wake -> they load the weights

A checkpoint takes one more turn of the trainer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrl.extensions.offload.memory import to_device, to_host
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callbacks import TrainerCallback


class MemoryTurns(TrainerCallback):
    """Begins with the trainer's turn.

    models: those whose states leave the device. sleep: puts the engines to sleep, or wakes them; called on rank
    0.
    """

    def __init__(self, models: Sequence[TrainEngine], sleep: Callable[[bool], None]) -> None:
        self.models = models
        self.sleep = sleep
        self.training = True

    def begin_work(self) -> None:
        """Put the engines to sleep, then bring the states back. Raises what `sleep` raises, on rank 0."""
        if self.training:
            return
        self.training = True
        self._each_sleeps(True)
        for engine in self.models:
            to_device(engine)

    def end_work(self) -> None:
        """Move the states to the host, then wake the engines. Raises what `sleep` raises, on rank 0."""
        if not self.training:
            return
        self.training = False
        for engine in self.models:
            to_host(engine)
        self._each_sleeps(False)

    def _each_sleeps(self, asleep: bool) -> None:
        """Change the engines' state between two barriers: no rank uses memory that is not its own."""
        first = self.models[0]
        first.barrier()
        if first.rank == 0:
            self.sleep(asleep)
        first.barrier()
