"""The trainer: take a batch, train, publish the next version, account for it.

    buffer --take(k)--> rank 0 --broadcast--> all ranks: train step k -> k+1
    rank 0: write weights k+1 -> prepare and commit on every engine -> buffer.commit(k+1) -> log

Engines keep generating all the while; they stand still only for the swap of a commit. The buffer's commit comes
last: it marks the batch trained and frees its slots, so a crash before it replays the same batch.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.data.codec import decode_group, encode_group, pack, unpack
from asyncrl.errors import DeadlineError, StopError
from asyncrl.train.auxiliary_models import Anchors
from asyncrl.train.controls import make_controls, scheduled_rate
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.logprob_check import Comparison, compare, refuted
from asyncrl.train.poison import PoisonFolder
from asyncrl.train.resume import Checkpointer
from asyncrl.train.schedule import gather, settle
from asyncrl.train.sft_phase import SftPhase
from asyncrl.train.step import StepReport, StepSettings, train_step
from asyncrl.train.step_batch import StepBatch, build_step_batch
from asyncrl.train.stream import StreamedStep
from asyncrl.types import Group
from asyncrl.weights.publish import PublishReport

log = logging.getLogger("asyncrl.train")

STOP_LOOK_S = 2.0
"""How often a trainer that waits for groups looks whether it is to stop."""


class BatchSource(Protocol):
    """The part of the buffer the trainer uses, synchronous, on rank 0."""

    def take(self, step: int, wait_s: float) -> Sequence[Group] | None:
        """Groups of the batch of `step`; [] when the plan is exhausted; None when `wait_s` passed first."""
        ...

    def peek(self, step: int, seen: Sequence[str], wait_s: float) -> tuple[Sequence[Group], bool]: ...

    def commit(self, version: int) -> None: ...

    def set_staleness_limit(self, limit: int) -> None: ...

    def drop(self, step: int, group_ids: Sequence[str], reason: str) -> int: ...

    def reject(self, step: int, group_ids: Sequence[str], reason: str) -> Sequence[str]: ...

    def stats(self) -> dict[str, Any]: ...


class Publisher(Protocol):
    """Brings new weights to the engines. `tensors` must be iterated on every rank."""

    def publish(self, version: int, engine: TrainEngine) -> PublishReport: ...


@dataclass(slots=True)
class Totals:
    """Accumulates what the run's summary reports."""

    steps: int = 0
    trained_groups: int = 0
    trained_tokens: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    """Sampled tokens trained, by lag in versions."""
    pauses_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    wait_s: float = 0.0
    publish_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `asdict` alone would count the pairs of a Counter."""
        return asdict(self) | {"lags": dict(self.lags)}


class Trainer:
    """Runs steps on every rank; only rank 0 talks to the other processes."""

    def __init__(
        self,
        config: Config,
        engine: TrainEngine,
        objective: Objective,
        anchors: Anchors,
        source: BatchSource | None,
        publisher: Publisher,
        on_step: Callable[[int, dict[str, Any], Sequence[Group]], None] = lambda *_: None,
        checkpointer: Checkpointer | None = None,
        poison: PoisonFolder | None = None,
        asked_to_stop: Callable[[], bool] = lambda: False,
        weights_dir: Path | None = None,
        on_commit: Callable[[int, Sequence[Group]], None] = lambda *_: None,
    ) -> None:
        self.config = config
        self.asked_to_stop = asked_to_stop
        """Asked on rank 0 between steps and while groups are waited for."""
        self.stopped = False
        """Whether the run ended because it was asked to."""
        self.engine = engine
        self.objective = objective
        self.anchors = anchors
        self.source = source
        self.publisher = publisher
        self.on_step = on_step
        self.on_commit = on_commit
        """Called on rank 0 with the groups of each step once the buffer has it, before its checkpoint."""
        self.checkpointer = checkpointer
        self.poison = poison
        self.weights_dir = weights_dir
        """Where the publisher leaves the weights of the version before, to check what that one sampled."""
        self.controls = make_controls(config, objective)
        self.sft_phase = SftPhase(config.sft_phase)
        self.totals = Totals()
        self.trusted: list[Comparison] = []
        """What the newest batch's log-probabilities were found to be."""
        self.settings = StepSettings(
            temperature=config.rollout.temperature,
            micro_batch_tokens=config.train.micro_batch_tokens,
            num_minibatches=config.train.num_minibatches,
            horizon=float(config.max_tokens),
        )

    def run(self, start: int = 0) -> int:
        """Train from version `start` until the recipe's steps or the plan are done, or it is asked to stop; return the
        version."""
        version = start
        self.anchors.before_run(self.engine, version)
        while version < self.config.train.num_steps:
            streamed, streaming_s = self._stream(version)
            groups, wait_s = self._take(version)
            if not groups:
                if streamed is not None:
                    streamed.abandon()
                break
            if not self._trusted(version, groups):
                if streamed is not None:
                    streamed.abandon()
                continue
            self._one_step(version, groups, wait_s + streaming_s, streamed)
            version += 1
        return version

    def _stream(self, version: int) -> tuple[StreamedStep | None, float]:
        """Under the periodic schedule train on groups as they come; return the open step and the seconds waited."""
        if self.config.train.schedule != "periodic":
            return None, 0.0
        streamed = StreamedStep(
            self.engine, self.objective, self.anchors, self.settings, version,
            scheduled_rate(self.config.train, version), self.controls.kl.coef,
        )  # fmt: skip
        wait_s = gather(
            streamed, self.source, self.config.buffer.wait_timeout_s, self.asked_to_stop, STOP_LOOK_S
        )
        return streamed, wait_s

    def _trained(
        self, version: int, batch: StepBatch, groups: Sequence[Group], streamed: StreamedStep | None
    ) -> StepReport:
        """Take the step that was streamed, or where that cannot be, the whole batch's."""
        report = streamed.finish(groups) if streamed is not None else None
        return report or train_step(
            self.engine, self.objective, self.anchors, batch, self.settings, scheduled_rate(self.config.train, version),
            self.controls, lambda found: self._set_aside(version, groups, found),
        )  # fmt: skip

    def _one_step(
        self, version: int, groups: Sequence[Group], wait_s: float, streamed: StreamedStep | None
    ) -> None:
        start = time.perf_counter()
        batch = build_step_batch(groups, version, self.config.buffer.max_staleness)
        streamed_s = streamed.busy_s if streamed is not None else 0.0
        report = self._trained(version, batch, groups, streamed)
        report.metrics |= self.sft_phase.after_step(self.engine, batch, self.settings, version + 1)
        report.metrics |= self.anchors.after_step(self.engine, version + 1, report.metrics)
        train_s = time.perf_counter() - start + streamed_s
        settle_s = self._settle()
        start = time.perf_counter()
        published = self.publisher.publish(version + 1, self.engine)
        if self.engine.rank == 0:
            assert self.source is not None
            self.source.commit(version + 1)
            self.on_commit(version + 1, groups)
        self._steer(report)
        publish_s = time.perf_counter() - start
        wait_s += settle_s
        self._account(batch, groups, report, published, wait_s, train_s, publish_s)
        report.metrics |= self._checkpoint(version + 1)
        if self.engine.rank == 0:
            metrics = self._metrics(batch, groups, report, published, wait_s, train_s, publish_s)
            self.on_step(version + 1, metrics, groups)

    def _settle(self) -> float:
        """Under the one-step-off schedule let what is being generated finish; return the seconds waited.

        No episode then spans two versions. Raises `DeadlineError`.
        """
        if self.config.train.schedule != "one_step_off":
            return 0.0
        start = time.perf_counter()
        if self.engine.rank == 0:
            assert self.source is not None
            settle(self.source.stats, self.config.buffer.wait_timeout_s)
        self.engine.barrier()
        return time.perf_counter() - start

    def _trusted(self, version: int, groups: Sequence[Group]) -> bool:
        """False when groups of the batch were not sampled by the policy; the buffer has it back then.

        A batch that was given back before a crash of the buffer is found out here again.
        """
        config = self.config
        found = compare(
            self.engine, groups, version, config.buffer.max_staleness, config.trust, self.settings,
            self.weights_dir,
        )  # fmt: skip
        self.trusted = found
        wrong = refuted(found, config.trust)
        if not wrong:
            return True
        worst = max(wrong, key=lambda one: one.worst)
        reason = (
            f"log-probabilities of {len(wrong)} groups differ from the trainer's: those of group {worst.group} by "
            f"{worst.error:.3g} nats on average and {worst.worst:.3g} at most (step {version}, {worst.num_tokens} "
            f"tokens); trust.max_logp_error={config.trust.max_logp_error:g} and trust.max_token_error="
            f"{config.trust.max_token_error:g} allow less"
        )
        if self.engine.rank == 0:
            assert self.source is not None
            workers = self.source.reject(version, [one.group for one in wrong], reason)
            log.error("quarantined %s: %s", ", ".join(workers), reason)
        self.engine.barrier()
        return False

    def _set_aside(self, version: int, groups: Sequence[Group], found: dict[int, str]) -> None:
        """Save poisoned groups and take them out of the batch. Raises `StopError` where the recipe says so."""
        ordered = sorted(groups, key=lambda group: group.task.id)
        wrong = {ordered[index].id: why for index, why in found.items()}
        critic = self.anchors.critic
        engines = {"policy": self.engine}
        if critic is not None and critic.engine is not None:
            engines["critic"] = critic.engine
        path = None
        if self.poison is not None:
            path = self.poison.save(version, wrong, groups, engines, self.state_dict())
        message = "; ".join(f"group {group}: {why}" for group, why in wrong.items())
        if self.engine.rank == 0:
            assert self.source is not None
            log.error("step %d leaves out poisoned groups (%s), kept in %s", version, message, path)
            self.source.drop(version, list(wrong), "poison")
        self.engine.barrier()
        if self.config.train.on_poison == "stop":
            raise StopError(f"step {version}: {message}; train.on_poison is 'stop'")

    def _checkpoint(self, version: int) -> dict[str, Any]:
        """Save when due; return how long training stood still for it, and why the write before came to nothing."""
        saver = self.checkpointer
        if saver is None:
            return {}
        error = {"checkpoint/error": saver.error} if saver.error else {}
        if not saver.due(version):
            return error
        stall_s = saver.save(version, self.state_dict())
        return error | {"time/checkpoint_s": stall_s, "time/checkpoint_write_s": saver.write_s}

    def _steer(self, report: StepReport) -> None:
        """Let the controllers follow what the step measured; every rank computes the same."""
        controls = self.controls
        controls.kl.update(report.metrics, report.num_sequences)
        if controls.kl.target is not None:
            report.metrics["kl_coef"] = controls.kl.coef
        if controls.staleness is None:
            return
        changed = controls.staleness.update(report.metrics)
        report.metrics["staleness/bound"] = float(controls.staleness.state.max_staleness)
        if changed is not None and self.engine.rank == 0:
            assert self.source is not None
            self.source.set_staleness_limit(changed)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside weights and optimizer; tensors and plain values only."""
        return {
            "anchors": self.anchors.state_dict(),
            "controls": self.controls.state_dict(),
            "sft_phase": self.sft_phase.state_dict(),
            "totals": self.totals.to_dict(),
        }

    def staleness_limit(self) -> int | None:
        """Return the staleness limit its controller has in force; None where the recipe's stands."""
        staleness = self.controls.staleness
        # A run may go on under a lower limit than its checkpoint knew.
        return min(staleness.state.max_staleness, staleness.rule.maximum) if staleness is not None else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned. Call on every rank."""
        self.anchors.load_state_dict(state["anchors"])
        self.controls.load_state_dict(state["controls"])
        self.sft_phase.load_state_dict(state["sft_phase"])
        self.totals = Totals(**{**state["totals"], "lags": Counter(state["totals"]["lags"])})

    def _take(self, step: int) -> tuple[list[Group], float]:
        """Return the step's groups on every rank, and the seconds rank 0 waited; none when it was asked to stop."""
        start = time.perf_counter()
        message = None
        if self.engine.rank == 0:
            groups, stop = self._wait_for_batch(step)
            timeout = groups is None and not stop
            message = pack(
                {"timeout": timeout, "stop": stop, "groups": [encode_group(g) for g in groups or ()]}
            )
        answer = unpack(self.engine.broadcast_bytes(message))
        self.stopped = answer["stop"]
        if answer["timeout"]:
            raise DeadlineError(
                f"step {step}: no batch within buffer.wait_timeout_s={self.config.buffer.wait_timeout_s:g}; "
                "the rollout workers' logs say what they are waiting for"
            )
        return [decode_group(body) for body in answer["groups"]], time.perf_counter() - start

    def _wait_for_batch(self, step: int) -> tuple[Sequence[Group] | None, bool]:
        """Return the batch, None when it did not come in time, and whether the trainer is to stop instead."""
        assert self.source is not None
        left_s = self.config.buffer.wait_timeout_s
        while not self.asked_to_stop():
            piece_s = min(left_s, STOP_LOOK_S)
            groups = self.source.take(step, piece_s)
            left_s -= piece_s
            if groups is not None or left_s <= 0:
                return groups, False
        return None, True

    def _account(
        self,
        batch: StepBatch,
        groups: Sequence[Group],
        report: StepReport,
        published: PublishReport,
        wait_s: float,
        train_s: float,
        publish_s: float,
    ) -> None:
        totals = self.totals
        totals.steps += 1
        totals.trained_groups += len(groups) - len(report.poisoned)
        totals.trained_tokens += report.num_tokens
        totals.lags.update(token_lags(batch))
        totals.pauses_s += published.pause_s
        totals.busy_s += train_s
        totals.wait_s += wait_s
        totals.publish_s += publish_s

    def _metrics(
        self,
        batch: StepBatch,
        groups: Sequence[Group],
        report: StepReport,
        published: PublishReport,
        wait_s: float,
        train_s: float,
        publish_s: float,
    ) -> dict[str, Any]:
        assert self.source is not None
        rewards = np.array([t.reward for t in batch.trajectories])
        successes = [float(t.success) for t in batch.trajectories if t.success is not None]
        lags = token_lags(batch)
        count = max(1, sum(lags.values()))
        wall_s = wait_s + train_s + publish_s
        stats = self.source.stats()
        return {
            **report.metrics,
            "proximal": self.objective.proximal_form,
            "reward/mean": float(rewards.mean()),
            "reward/std": float(rewards.std()),
            **({"success/mean": float(np.mean(successes))} if successes else {}),
            "trust/error": max((one.error for one in self.trusted), default=0.0),
            "trust/worst_token": max((one.worst for one in self.trusted), default=0.0),
            "trust/tokens": sum(one.num_tokens for one in self.trusted),
            "trust/earlier_tokens": sum(one.num_earlier for one in self.trusted),
            "staleness/mean": sum(lag * n for lag, n in lags.items()) / count,
            "staleness/max": max(lags, default=0),
            "tokens/trained": report.num_tokens,
            "tokens_per_s": report.num_tokens / max(wall_s, 1e-9),
            "batch/groups": len(groups),
            "batch/sequences": report.num_sequences,
            "length/mean": float(np.mean(batch.lengths)),
            "length/max": max(batch.lengths),
            "turns/mean": float(np.mean([len(t.turns) for t in batch.trajectories])),
            "turns/history_forks": sum(int(t.info.get("history_forks", 0)) for t in batch.trajectories),
            "time/wait_s": wait_s,
            "time/train_s": train_s,
            "time/publish_s": publish_s,
            "time/pause_s": max(published.pause_s, default=0.0),
            "busy/trainer": (train_s + publish_s) / max(wall_s, 1e-9),
            "skipped": report.skipped,
            "batch/poisoned": len(report.poisoned),
            **{f"buffer/{name}": value for name, value in stats.items() if isinstance(value, int | float)},
        }


def token_lags(batch: StepBatch) -> Counter[int]:
    """Count sampled tokens by lag: the version that trains them minus the version that sampled them."""
    lags: Counter[int] = Counter()
    for trajectory in batch.trajectories:
        values, counts = np.unique(batch.step - trajectory.versions[trajectory.loss_mask], return_counts=True)
        for value, number in zip(values.tolist(), counts.tolist(), strict=True):
            lags[int(value)] += int(number)
    return lags


def set_threads(threads: int) -> None:
    """Bound torch's CPU threads; 0 leaves torch's choice."""
    if threads:
        torch.set_num_threads(threads)
