"""Engines and trainer that use the same GPU memory by turns (docs/placement.md).

    trainer takes a batch -> engines sleep -> its states return -> train, write weights
    -> its states leave -> engines wake -> they load the weights

A checkpoint takes one more turn of the trainer's.

The GPUs of a trainer that lends them change hands only where it would wait, beside engines that always sample:

    no batch is there -> its states leave -> engines on loan wake with the newest weights
    -> a batch is there -> they sleep -> its states return

Trainers of several policies may use the same GPUs by turns, beside engines that have others:

    a batch is there -> no other trainer works -> its states return -> train, write weights -> its states leave
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from asyncrl.train.deepspeed_engine import TrainEngine, broadcast_flag
from asyncrl.train.loan import Returned
from asyncrl.train.offload import to_device, to_host
from asyncrl.train.trainer_lock import TrainerLock

log = logging.getLogger("asyncrl.train")

LOOK_S = 2.0
"""How often the ranks of a trainer that waits for its turn meet."""
SAY_EVERY_S = 30.0
"""How often it says so."""


class Turns(Protocol):
    """Who may use the memory. Each call is a collective, and has no effect where it is that side's turn already."""

    lends: bool
    """Whether the trainer gives memory away only while it waits."""

    def to_trainer(self) -> None: ...

    def to_others(self) -> None:
        """Let engines, or other trainers, use the memory. Call when the trainer has ended."""
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

    def to_others(self) -> None:
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

    def to_others(self) -> None:
        """Move the states to the host, then wake the engines. Raises what `sleep` raises, on rank 0."""
        if not self.training:
            return
        self.training = False
        for engine in self.trained:
            to_host(engine)
        self._each_sleeps(False)

    def after_step(self) -> None:
        """See `to_others`."""
        self.to_others()

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

    def to_others(self) -> None:
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
        """See `to_others`. An engine that was not there is looked for again."""
        if self.training:
            self.to_others()
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


class TrainerTurns:
    """Begins with this trainer's turn.

    trained: the models whose states leave the device. lock: this rank's.
    """

    lends = False

    def __init__(self, trained: Sequence[TrainEngine], lock: TrainerLock) -> None:
        self.trained = trained
        self.lock = lock
        self.training = True
        self._waited_s = self._moved_s = 0.0

    def to_trainer(self) -> None:
        """Wait until no other trainer works, then bring the states back."""
        if self.training:
            return
        self.training = True
        start = time.perf_counter()
        wait_for_turn(self.lock, self.trained[0].rank, self.trained[0].progress.mark)
        there = time.perf_counter()
        for engine in self.trained:
            to_device(engine)
        self._waited_s += there - start
        self._moved_s += time.perf_counter() - there

    def to_others(self) -> None:
        """Move the states to the host, then let another trainer work."""
        if not self.training:
            return
        self.training = False
        start = time.perf_counter()
        for engine in self.trained:
            to_host(engine)
        self.lock.release()
        self._moved_s += time.perf_counter() - start

    def after_step(self) -> None:
        """See `to_others`."""
        self.to_others()

    def while_waiting(self) -> None:
        """Do nothing: others may use the memory already."""

    def metrics(self) -> dict[str, float]:
        """Return how many seconds the trainer waited for its turns, and how many its states took to move."""
        found = {"turn/waited_s": self._waited_s, "turn/moved_s": self._moved_s}
        self._waited_s = self._moved_s = 0.0
        return found


def wait_for_turn(lock: TrainerLock, rank: int, mark: Callable[[], None] = lambda: None) -> None:
    """Return when every rank has its GPU. A collective.

    Rank 0 comes first, so that no two trainers wait for each other; another's rank may still be ending. A trainer that
    hangs in its turn is ended by its own supervision, and with it its turn. mark: called while this one waits.
    """
    waited_s, said_s = 0.0, 0.0
    while not broadcast_flag(lock.acquire(LOOK_S) if rank == 0 else False):
        mark()
        waited_s += LOOK_S
        if rank == 0 and waited_s - said_s >= SAY_EVERY_S:
            said_s = waited_s
            log.warning(
                "waits for its turn on the GPUs for %.0f s; the trainer of %s has them",
                waited_s,
                lock.holder(),
            )
    while rank and not lock.acquire(LOOK_S):
        mark()
