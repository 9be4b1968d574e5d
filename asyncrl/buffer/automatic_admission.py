"""How many groups are worth having in flight: more while that makes generation faster, fewer while they wait.

What is finished a second grows with what is in flight until engines or environments are saturated; from there on more
only waits longer and grows older. The two are told apart by trying: hill climbing on throughput, as adaptive
concurrency limits do (Heiss and Wagner 1991, "Adaptive load control in transaction processing systems").
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MEASURED_BATCHES = 4
"""How many batches a throughput is taken from."""
RAISE = 1.5
"""So many times as many are tried before it is looked at whether they were worth it."""
WORTH = 0.25
"""They must bring at least this share of the throughput that they would bring where nothing is saturated."""
HOLD = 4
"""So many times as long as they were measured they are not tried again when they were not."""
FIRST_BATCHES = 3


@dataclass(slots=True)
class Climb:
    """Decides after each batch how many groups are admitted beyond one step's, from 0 to `most`.

    Half a step's more after each batch that the trainer had to wait for, until `RAISE` times as many are in flight;
    then what these bring is measured, and they stay or are taken back. A quarter of a step's fewer while more than one
    step's are ready and wait for the trainer. Throughput is sampled tokens of batches a second, which says the same of
    short and of long episodes.
    """

    most: int
    groups_per_step: int
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MEASURED_BATCHES + 1))
    """When the newest batches were taken, and their tokens."""
    _still: int = FIRST_BATCHES + 1
    """Batches for which nothing is raised: until those first admitted, or those being tried, have come through."""
    _before: tuple[int, float] | None = None
    """In flight, and tokens a second, before what is being tried."""

    def first(self) -> int:
        """Return how many to admit before the first batch was taken."""
        return min(self.most, FIRST_BATCHES * self.groups_per_step)

    def after_batch(self, beyond: int, waited: bool, left: int, tokens: int, now_s: float) -> int:
        """Return how many to admit from now on.

        beyond: how many were. waited: whether the trainer had to wait for the batch. left: groups that were ready and
        not in it. tokens: those sampled for the batch. A trainer that waited although more than a batch was ready
        waited for a slow group that was due, which more groups would not have made faster.
        """
        self._recent.append((now_s, tokens))
        plenty = left > self.groups_per_step
        if plenty and not waited:
            # What is being tried is not needed; that it was no use before is not forgotten.
            self._still = max(0, self._still - 1) if self._before is None else 0
            self._before = None
            beyond -= max(1, self.groups_per_step // 4)
        elif self._still:
            self._still -= 1
            if not self._still and self._before is not None:
                beyond = self._judged(beyond)
        elif waited and not plenty and beyond < self.most:
            beyond = self._raised(beyond)
        return max(0, min(self.most, beyond))

    def _raised(self, beyond: int) -> int:
        in_flight = self.groups_per_step + beyond
        if self._before is None:
            self._before = in_flight, self._throughput()
        limit = min(self.groups_per_step + self.most, max(in_flight + 1, int(self._before[0] * RAISE)))
        in_flight = min(limit, in_flight + max(1, self.groups_per_step // 2))
        if in_flight == limit:
            self._still = self._trial(in_flight)
        return in_flight - self.groups_per_step

    def _judged(self, beyond: int) -> int:
        """Return as many as before where the others were not worth it."""
        assert self._before is not None
        fewer, before = self._before
        self._before = None
        in_flight = self.groups_per_step + beyond
        if self._throughput() >= before * (1 + WORTH * (in_flight / fewer - 1)):
            return beyond
        self._still = HOLD * self._trial(in_flight)
        return fewer - self.groups_per_step

    def _trial(self, in_flight: int) -> int:
        """Return how many batches a measurement takes: what is in flight at its beginning is finished first."""
        return -(-in_flight // self.groups_per_step) + MEASURED_BATCHES

    def _throughput(self) -> float:
        """Return tokens a second of the newest batches."""
        start_s, _ = self._recent[0]
        end_s, _ = self._recent[-1]
        return sum(tokens for _, tokens in list(self._recent)[1:]) / max(end_s - start_s, 1e-9)
