"""Automatic admission: how many groups to keep in flight, found by measuring throughput.

Throughput grows with the number of groups in flight until the engines or the environments are saturated. Past that
point more groups only wait longer and grow staler. That point is found by hill climbing on throughput, as in adaptive
concurrency limits (Heiss and Wagner 1991, "Adaptive load control in transaction processing systems").
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MEASURED_BATCHES = 4
"""Batches over which throughput is averaged."""
TRIAL_FACTOR = 1.5
"""A trial raises the groups in flight by this factor before it is judged."""
MIN_GAIN = 0.25
"""Smallest gain in throughput that keeps a trial, as a share of the gain without any saturation."""
BACKOFF_FACTOR = 4
"""After a failed trial the next one waits this many times as long as the trial took."""
FIRST_BATCHES = 1
"""Over-provision at the start of a run, in batches: with it the next batch is sampled while the trainer works, which is
most of what more in flight may gain, and tokens are about one step old (docs/studies/same_end.md)."""


@dataclass(slots=True)
class AutomaticAdmission:
    """Sets the over-provision, the groups admitted beyond one step's, after each batch: from 0 to `maximum`.

    It grows by half a step's groups after each batch that the trainer had to wait for, until `TRIAL_FACTOR` times as
    many groups are in flight. Then the throughput of this trial is measured, and the over-provision is kept or reset.
    It shrinks by a quarter of a step's groups while more than one step's groups are ready and waiting for the trainer.
    Throughput is sampled tokens per second over whole batches, which does not depend on the length of episodes.
    """

    maximum: int
    groups_per_step: int
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MEASURED_BATCHES + 1))
    """Time and tokens of the most recent batches."""
    _hold: int = FIRST_BATCHES + 1
    """Batches before the next raise: the first groups, or those of the trial, must pass through first."""
    _baseline: tuple[int, float] | None = None
    """Groups in flight and tokens per second before the trial; None outside a trial."""

    def initial(self) -> int:
        """Return the over-provision to start with."""
        return min(self.maximum, FIRST_BATCHES * self.groups_per_step)

    def after_batch(self, current: int, waited: bool, left: int, tokens: int, now_s: float) -> int:
        """Return the new over-provision.

        current: the over-provision so far. waited: whether the trainer had to wait for the batch. left: ready groups
        that are not in the batch. tokens: tokens sampled for the batch. A trainer that waited although more than a
        batch was ready was waiting for a slow group at its deadline; more groups would not have helped.
        """
        self._recent.append((now_s, tokens))
        plenty = left > self.groups_per_step
        if plenty and not waited:
            # The trial is not needed, so it ends. The wait after an earlier failed trial continues.
            self._hold = max(0, self._hold - 1) if self._baseline is None else 0
            self._baseline = None
            current -= max(1, self.groups_per_step // 4)
        elif self._hold:
            self._hold -= 1
            if not self._hold and self._baseline is not None:
                current = self._end_trial(current)
        elif waited and not plenty and current < self.maximum:
            current = self._raise(current)
        return max(0, min(self.maximum, current))

    def _raise(self, current: int) -> int:
        """Return a larger over-provision; at the trial's limit, start measuring."""
        in_flight = self.groups_per_step + current
        if self._baseline is None:
            self._baseline = in_flight, self._throughput()
        target = max(in_flight + 1, int(self._baseline[0] * TRIAL_FACTOR))
        limit = min(self.groups_per_step + self.maximum, target)
        in_flight = min(limit, in_flight + max(1, self.groups_per_step // 2))
        if in_flight == limit:
            self._hold = self._trial_batches(in_flight)
        return in_flight - self.groups_per_step

    def _end_trial(self, current: int) -> int:
        """Keep the over-provision if throughput grew enough, otherwise return the one before the trial."""
        assert self._baseline is not None
        fewer, before = self._baseline
        self._baseline = None
        in_flight = self.groups_per_step + current
        if self._throughput() >= before * (1 + MIN_GAIN * (in_flight / fewer - 1)):
            return current
        self._hold = BACKOFF_FACTOR * self._trial_batches(in_flight)
        return fewer - self.groups_per_step

    def _trial_batches(self, in_flight: int) -> int:
        """Return how many batches a trial takes: groups in flight at its start must finish before it is measured."""
        return -(-in_flight // self.groups_per_step) + MEASURED_BATCHES

    def _throughput(self) -> float:
        """Return tokens per second over the most recent batches."""
        start_s, _ = self._recent[0]
        end_s, _ = self._recent[-1]
        return sum(tokens for _, tokens in list(self._recent)[1:]) / max(end_s - start_s, 1e-9)
