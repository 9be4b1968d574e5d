"""Engines and trainer that use the same GPU memory by turns (docs/placement.md).

    trainer takes a batch -> engines sleep -> its states return -> train, write weights
    -> its states leave -> engines wake -> they load the weights

A checkpoint takes one more turn of the trainer's.

The GPUs of a trainer that lends them change hands only where it would wait, beside engines that always sample:

    no batch is there -> its states leave -> engines on loan wake with the newest weights
    -> a batch is there -> they sleep -> its states return
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.loan import Returned
from asyncrl.train.offload import to_device, to_host


class Turns(Protocol):
    """Who may use the memory. Each call is a collective, and has no effect where it is that side's turn already."""

    lends: bool
    """Whether the trainer gives memory away only while it waits."""

    def to_trainer(self) -> None: ...

    def to_engines(self) -> None:
        """Call when the trainer has ended."""
        ...

    def after_step(self) -> None:
        """Call after each step."""
        ...

    def while_waiting(self) -> None:
        """Call again and again while no batch is there."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return what a step's metrics hold of the turns since the last call. Not a collective."""
        ...


class NoTurns:
    """Both have memory of their own."""

    lends = False

    def to_trainer(self) -> None:
        """Do nothing."""

    def to_engines(self) -> None:
        """Do nothing."""

    def after_step(self) -> None:
        """Do nothing."""

    def while_waiting(self) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, float]:
        return {}


class MemoryTurns:
    """Begins with the trainer's turn.

    trained: the models whose states leave the device. sleep: puts the engines to sleep, or wakes them; called on rank
    0.
    """

    lends = False

    def __init__(self, trained: Sequence[TrainEngine], sleep: Callable[[bool], None]) -> None:
        self.trained = trained
        self.sleep = sleep
        self.training = True

    def to_trainer(self) -> None:
        """Put the engines to sleep, then bring the states back. Raises what `sleep` raises, on rank 0."""
        if self.training:
            return
        self.training = True
        self._each_sleeps(True)
        for engine in self.trained:
            to_device(engine)

    def to_engines(self) -> None:
        """Move the states to the host, then wake the engines. Raises what `sleep` raises, on rank 0."""
        if not self.training:
            return
        self.training = False
        for engine in self.trained:
            to_host(engine)
        self._each_sleeps(False)

    def after_step(self) -> None:
        """See `to_engines`."""
        self.to_engines()

    def while_waiting(self) -> None:
        """Do nothing: it is the engines' turn already."""

    def metrics(self) -> dict[str, float]:
        return {}

    def _each_sleeps(self, asleep: bool) -> None:
        """Change the engines' state between two barriers: no rank uses memory that is not its own."""
        first = self.trained[0]
        first.barrier()
        if first.rank == 0:
            self.sleep(asleep)
        first.barrier()


class Lending:
    """Begins with the trainer's turn.

    trained: the models whose states leave the device. switch: puts the engines on loan to sleep, or wakes them; called
    on rank 0.
    """

    lends = True

    def __init__(self, trained: Sequence[TrainEngine], switch: Callable[[bool], Returned]) -> None:
        self.trained = trained
        self.switch = switch
        self.training = True
        self._missing = False
        """On rank 0, whether an engine did not wake."""
        self._woken = 0.0
        self._awake_s = self._turns_s = 0.0
        self._tokens = 0

    def to_trainer(self) -> None:
        """Put the engines on loan to sleep, then bring the states back. Raises what `switch` raises, on rank 0."""
        if self.training:
            return
        self.training = True
        start = time.perf_counter()
        if not self._missing:
            self._awake_s += start - self._woken
        self._tokens += self._switch(True).tokens
        for engine in self.trained:
            to_device(engine)
        self._turns_s += time.perf_counter() - start

    def to_engines(self) -> None:
        """Move the states to the host, then wake the engines on loan."""
        if not self.training:
            return
        self.training = False
        start = time.perf_counter()
        for engine in self.trained:
            to_host(engine)
        self._missing = not self._switch(False).all_there
        self._woken = time.perf_counter()
        self._turns_s += self._woken - start

    def after_step(self) -> None:
        """Do nothing: the next batch may be there already."""

    def while_waiting(self) -> None:
        """See `to_engines`. An engine that was not there is looked for again."""
        if self.training:
            self.to_engines()
        elif self._missing:
            self._missing = not self.switch(False).all_there
            self._woken = time.perf_counter()

    def metrics(self) -> dict[str, float]:
        """Return for how many seconds engines on loan were awake, how many the changes took, and the tokens that they
        computed, read and sampled."""
        found = {"lent/awake_s": self._awake_s, "lent/turns_s": self._turns_s, "lent/tokens": self._tokens}
        self._awake_s, self._turns_s, self._tokens = 0.0, 0.0, 0
        return found

    def _switch(self, asleep: bool) -> Returned:
        """Change the engines' state between two barriers: no rank uses memory that is not its own."""
        first = self.trained[0]
        first.barrier()
        found = self.switch(asleep) if first.rank == 0 else Returned()
        first.barrier()
        return found
