"""What one step did, and what of it enters the run's metrics and totals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from asyncrl.train.loop.voids import void_metrics
from asyncrl.train.step.step import StepReport
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.types import Trajectory
from asyncrl.weights.chunks import short_kinds
from asyncrl.weights.publish import PublishReport

MOST_COMPONENTS = 64
"""Components whose means are told: an agent's program may name any number."""


@dataclass(slots=True)
class StepTimes:
    """Where the seconds of one step went, on this rank."""

    wait_s: float = 0.0
    """Until groups were there, or what is in flight had finished."""
    train_s: float = 0.0
    publish_s: float = 0.0
    """While the trainer stood still for publishing: until the engines had the new version and the buffer had accounted
    for it or, in the background, until the version before was there and the new one was copied."""

    @property
    def wall_s(self) -> float:
        return self.wait_s + self.train_s + self.publish_s

    def waiting(self) -> AbstractContextManager[None]:
        return self._adding_to("wait_s")

    def training(self) -> AbstractContextManager[None]:
        return self._adding_to("train_s")

    def publishing(self) -> AbstractContextManager[None]:
        return self._adding_to("publish_s")

    @contextmanager
    def _adding_to(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        setattr(self, name, getattr(self, name) + time.perf_counter() - start)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that has been trained."""

    batch: StepBatch
    report: StepReport
    times: StepTimes

    def metrics(self) -> dict[str, Any]:
        """Return what the metrics file holds of the step."""
        batch, report, times = self.batch, self.report, self.times
        fresh = batch.fresh_trajectories
        rewards = np.array([t.reward for t in fresh])
        successes = [float(t.success) for t in fresh if t.success is not None]
        num_tokens = max(1, sum(batch.lags.values()))
        wall_s = max(times.wall_s, 1e-9)
        return {
            **report.metrics,
            "reward/mean": float(rewards.mean()),
            "reward/std": float(rewards.std()),
            **({"success/mean": float(np.mean(successes))} if successes else {}),
            **component_means(fresh),
            "staleness/mean": sum(lag * n for lag, n in batch.lags.items()) / num_tokens,
            "staleness/max": max(batch.lags, default=0),
            "tokens/trained": report.num_tokens,
            "tokens_per_s": report.num_tokens / wall_s,
            "batch/groups": len(batch.fresh),
            **self._replayed(),
            **void_metrics(batch.fresh),
            "batch/sequences": report.num_sequences,
            "length/mean": float(np.mean([t.num_tokens for t in fresh])),
            "length/sampled_mean": float(np.mean([t.num_sampled for t in fresh])),
            "length/max": max(t.num_tokens for t in fresh),
            "turns/mean": float(np.mean([len(t.turns) for t in fresh])),
            "turns/history_forks": sum(int(t.info.get("history_forks", 0)) for t in fresh),
            "time/wait_s": times.wait_s,
            "time/train_s": times.train_s,
            "time/publish_s": times.publish_s,
            "busy/trainer": (times.train_s + times.publish_s) / wall_s,
            "skipped": report.skipped,
            **({"guard/message": report.message} if report.message else {}),
            "batch/poisoned": len(report.left_out),
        }

    def _replayed(self) -> dict[str, float]:
        """Return what is told of groups that were trained again, and of successes that completed groups."""
        batch, fresh = self.batch, set(self.batch.fresh_rows)
        own = len(batch.groups) - batch.further.get("external", 0)
        of_rows = zip(batch.group.tolist(), batch.trajectories, strict=False)
        rows = [t for row, (group, t) in enumerate(of_rows) if row not in fresh and group < own]
        if not rows:
            return {}
        return {
            "replay/groups": batch.further.get("replayed", 0),
            "replay/successes": batch.num_added,
            "replay/tokens": sum(t.num_sampled for t in rows),
            "replay/age_max": batch.step - min(t.min_version for t in rows),
        }


def component_means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean of each reward component over the trajectories that have it, of `MOST_COMPONENTS` at most."""
    found: dict[str, list[float]] = {}
    for one in trajectories:
        for name, value in one.components.items():
            found.setdefault(name, []).append(value)
    return {f"component/{name}": float(np.mean(found[name])) for name in sorted(found)[:MOST_COMPONENTS]}


def publish_metrics(published: PublishReport) -> dict[str, float]:
    """Return what the metrics file holds of a version's way to the engines."""
    return {
        "time/pause_s": max(published.pause_s, default=0.0),
        "weights/bytes": published.num_bytes,
        **{f"weights/{kind}_bytes": published.short_bytes.get(kind, 0) for kind in short_kinds()},
        "weights/publish_s": published.total_s,
    }


@dataclass(slots=True)
class RunTotals:
    """Accumulates what the run's summary reports."""

    steps: int = 0
    trained_groups: int = 0
    """Fresh ones. Each is also counted in `replayed_groups` as often as it was trained again."""
    replayed_groups: int = 0
    external_groups: int = 0
    """The groups of other runs, beside the trained ones."""
    completed_groups: int = 0
    """Those of the trained groups that an earlier success completed."""
    trained_tokens: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    """Sampled tokens trained, by lag in versions."""
    pauses_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    wait_s: float = 0.0
    publish_s: float = 0.0

    def add(self, step: StepRecord) -> None:
        self.steps += 1
        poisoned = sum(index < len(step.batch.fresh) for index in step.report.left_out)
        self.trained_groups += len(step.batch.fresh) - poisoned
        self.replayed_groups += step.batch.further.get("replayed", 0)
        self.external_groups += step.batch.further.get("external", 0)
        self.completed_groups += step.batch.num_added
        self.trained_tokens += step.report.num_tokens
        self.lags.update(step.batch.lags)
        self.busy_s += step.times.train_s
        self.wait_s += step.times.wait_s
        self.publish_s += step.times.publish_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `asdict` alone would count the pairs of a Counter."""
        return asdict(self) | {"lags": dict(self.lags)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> RunTotals:
        return cls(**{**state, "lags": Counter(state["lags"])})
