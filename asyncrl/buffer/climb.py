"""How many groups are worth having in flight: more while that makes generation faster, fewer while they wait.

What is finished a second grows with what is in flight until engines or environments are saturated; from there on more
only waits longer and grows older. The two are told apart by trying: hill climbing on throughput, as adaptive
concurrency limits do (Heiss and Wagner 1991, "Adaptive load control in transaction processing systems").
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEASURED_BATCHES = 4
"""How many batches one measurement lasts."""
RAISE = 1.5
WORTH = 0.25
"""A raise must bring at least this share of the throughput that it would bring where nothing is saturated."""
HOLD_BATCHES = 32
"""How many batches a raise that was not worth it keeps from trying again."""
FIRST_BATCHES = 3


@dataclass(slots=True)
class Climb:
    """Decides after each batch how many groups are admitted beyond one step's, from 0 to `most`.

    Throughput is sampled tokens of batches a second, which says the same of short and of long episodes.
    """

    most: int
    groups_per_step: int
    _skip: int = FIRST_BATCHES + 1
    """Batches until a measurement begins: those of groups that were admitted under another number, or a hold."""
    _start_s: float | None = None
    """When the measurement began."""
    _batches: list[int] = field(default_factory=list)
    """Tokens of the batches since."""
    _before: tuple[int, float] | None = None
    """In flight, and tokens a second, before the raise that is being tried."""

    def first(self) -> int:
        """Return how many to admit before the first batch was taken."""
        return min(self.most, FIRST_BATCHES * self.groups_per_step)

    def after_batch(self, beyond: int, waited: bool, left: int, tokens: int, now_s: float) -> int:
        """Return how many to admit from now on.

        beyond: how many were. waited: whether the trainer had to wait for the batch. left: groups that were ready and
        not in it. tokens: those sampled for the batch. A trainer that waited although more than a batch was
        ready waited for a slow group that was due, which more groups would not have made faster.
        """
        plenty = left > self.groups_per_step
        if plenty and not waited:
            self._measure_after(0)
            self._before = None
            return max(0, min(self.most, beyond - max(1, self.groups_per_step // 4)))
        if self._skip:
            self._skip -= 1
        elif self._start_s is None:
            self._start_s = now_s
        else:
            self._batches.append(tokens)
            if len(self._batches) == MEASURED_BATCHES:
                rate = sum(self._batches) / max(now_s - self._start_s, 1e-9)
                beyond = self._step(beyond, rate, waited and not plenty)
        return max(0, min(self.most, beyond))

    def _step(self, beyond: int, rate: float, wanted: bool) -> int:
        """Go back where the last raise was not worth it, else up where more is `wanted`."""
        in_flight = self.groups_per_step + beyond
        if self._before is not None:
            fewer, rate_before = self._before
            self._before = None
            if rate < rate_before * (1 + WORTH * (in_flight / fewer - 1)):
                self._measure_after(HOLD_BATCHES)
                return fewer - self.groups_per_step
        if not wanted or beyond >= self.most:
            self._measure_after(0)
            return beyond
        self._before = (in_flight, rate)
        raised = min(self.groups_per_step + self.most, max(in_flight + 1, int(in_flight * RAISE)))
        # What is in flight now is finished first.
        self._measure_after(-(-raised // self.groups_per_step))
        return raised - self.groups_per_step

    def _measure_after(self, batches: int) -> None:
        self._skip, self._start_s, self._batches = batches, None, []
