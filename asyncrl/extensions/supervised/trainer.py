"""The loop of supervised training: steps, held-out loss and checkpoints, on the engine of reinforcement learning."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.control.lr_schedule import lr_factor
from asyncrl.algo.loss.preference import kto_drift
from asyncrl.chat.renderer import sampling_seed
from asyncrl.config_sections import IMITATES, SftConfig
from asyncrl.data.micro_batches import pack_rows, plan_micro_batches
from asyncrl.errors import StopError
from asyncrl.extensions.supervised.demonstrations import Encoded
from asyncrl.extensions.supervised.examples import Schedule
from asyncrl.extensions.supervised.objectives import Objective, make_objective
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.types import IMAGES

LEARNING_RATE = 2e-5
"""Where `sft.learning_rate` is 0."""
SAY_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Tensors:
    """Rows of one forward pass, padded on the right."""

    ids: Tensor
    """[B,T] int64."""
    mask: Tensor
    """[B,T] bool: the tokens to learn."""
    images: list[Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """What objectives read of rows beside their tokens, [R] float32 each."""

    reference: np.ndarray
    """Log-probability of each answer under the model that training started from; 0 where none is read."""
    marks: np.ndarray
    """As `Examples.marks`; 0 where none are read."""

    @staticmethod
    def none(count: int) -> Facts:
        return Facts(np.zeros(count, np.float32), np.zeros(count, np.float32))

    def of(self, rows: list[int] | slice) -> Facts:
        return Facts(self.reference[rows], self.marks[rows])

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.reference).to(device), torch.from_numpy(self.marks).to(device)


class SupervisedTrainer:
    """Learns from rows in the order of a schedule. Make the same calls on every rank; each holds all rows."""

    def __init__(
        self,
        engine: TrainEngine,
        rows: Sequence[Encoded],
        heldout: Sequence[Encoded],
        schedule: Schedule,
        settings: SftConfig,
        micro_batch_tokens: int,
        checkpointer: Checkpointer | None = None,
        digest: str = "",
        on_step: Callable[[int, dict[str, Any]], None] = lambda step, metrics: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """digest: of what is learned from, kept with checkpoints. on_step: gets the number of steps taken and their
        metrics, on the first rank. say: gets lines for people, there, too."""
        self.engine = engine
        self.rows, self.heldout = rows, heldout
        self.schedule, self.settings = schedule, settings
        self.micro_batch_tokens = micro_batch_tokens
        self.objective = make_objective(settings.objective, settings.beta)
        self.measure = make_objective("likelihood", 0.0) if settings.objective in IMITATES else self.objective
        """What held-out rows are measured by."""
        self.facts = Facts.none(len(rows))
        self.heldout_facts = Facts.none(len(heldout))
        self.checkpointer = checkpointer
        self.digest = digest
        self.on_step, self.say = on_step, say
        self.stopped: Callable[[], bool] = lambda: False
        """Asked after each step, on the first rank, whether to end early."""

    def run(self, first: int = 0) -> int:
        """Take the steps from `first` on; return how many have been taken in all. A collective.

        Raises `StopError` where a gradient is not finite.
        """
        total, begun, shown_s, tokens = self.schedule.num_steps, time.monotonic(), 0.0, 0
        if first == 0:
            self._measure(0, {})
        for step in range(first, total):
            metrics = self.step(step)
            tokens += int(metrics["sft/tokens"])
            taken = step + 1
            saves = self.settings.checkpoint_every > 0 and taken % self.settings.checkpoint_every == 0
            if saves or taken == total:
                self._measure(taken, metrics)
            self._report(taken, metrics)
            now = time.monotonic()
            if now - shown_s > SAY_EVERY_S or taken == total:
                shown_s, pace = now, (now - begun) / (taken - first)
                self.say(
                    f"sft: step {taken}/{total}  loss {metrics['sft/loss']:.4f}{_heldout(metrics)}  "
                    f"{tokens / (now - begun):.0f} tokens/s  {duration((total - taken) * pace)} left"
                )
            if saves and taken < total and self.checkpointer is not None:
                self.checkpointer.save(taken, self.state_dict(taken))
            if taken < total and self.engine.on_first(self.stopped):
                return taken
        return total

    def step(self, step: int) -> dict[str, float]:
        """Take one optimizer step, numbered from 0, on the token mean of the loss; return its metrics. A collective."""
        chosen = self.schedule.rows(step)
        rows = [self.rows[row] for row in chosen]
        found = self._sums(rows, self.facts.of(chosen), self.objective, step)
        if not self.engine.finite():
            raise StopError(
                f"sft: the loss or gradient of step {step + 1} is not finite (loss {found['loss']:g}); lower "
                f"sft.learning_rate, or look at the rows of this step: {chosen}"
            )
        rate = self.learning_rate(step)
        return {
            **{f"sft/{name}": value for name, value in found.items()},
            "sft/grad_norm": self.engine.step(rate),
            "sft/learning_rate": rate,
            "sft/rows": float(len(rows)),
            "sft/tokens": float(sum(len(row.ids) for row in rows)),
            "sft/learned_tokens": float(sum(int(row.mask[1:].sum()) for row in rows)),
        }

    def _sums(
        self, rows: Sequence[Encoded], facts: Facts, objective: Objective, step: int | None = None
    ) -> dict[str, float]:
        """Return loss and metrics of rows that belong together, after their backward passes where it is for a step. A
        collective.

        facts: of these rows.
        """
        device = self.engine.device
        drift = torch.zeros((), device=device)
        if objective.drifts:
            drift = self._drift(rows[1::2], facts.of(slice(1, None, 2)))
            rows, facts = rows[::2], facts.of(slice(0, None, 2))
        size = objective.size(rows)
        totals: dict[str, Tensor] = {"loss": torch.zeros((), device=device)}
        plan = self._plan(rows)
        for number, part in enumerate(plan):
            # Equal where a step is taken again.
            seed = sampling_seed(self.settings.seed, str(step), number, self.engine.share)
            values = self._values([rows[row] for row in part], objective, seed)
            known = facts.of(part) if part else Facts.none(len(values))
            loss, more = objective.sums(values, *known.tensors(device), drift)
            if step is not None:
                self.engine.backward(loss / size, last=number == len(plan) - 1)
            for name, value in {"loss": loss.detach(), **more}.items():
                totals[name] = totals.get(name, torch.zeros((), device=device)) + value / size
        # A rank without rows has only the loss.
        names = ("loss", *objective.metrics)
        summed = torch.stack([totals.get(name, torch.zeros((), device=device)) for name in names])
        self.engine.sum_shares(summed)
        found = dict(zip(names, summed.tolist(), strict=True))
        return found | ({"drift": float(drift)} if objective.drifts else {})

    @torch.no_grad()
    def _drift(self, rows: Sequence[Encoded], facts: Facts) -> Tensor:
        """Return how far the policy has moved from the reference, from answers to other prompts. A collective."""
        now = torch.from_numpy(self.measure_reference(rows))
        return kto_drift(now - torch.from_numpy(facts.reference)).to(self.engine.device)

    @torch.no_grad()
    def measure_reference(self, rows: Sequence[Encoded]) -> np.ndarray:
        """Return the log-probability of each answer under the weights as they are, [R] float32. A collective."""
        found = torch.zeros(len(rows), device=self.engine.device)
        for part in self._plan(rows):
            if part:
                found[part] = self._values([rows[row] for row in part], self.objective).sum(-1)
            else:
                self._values([], self.objective)
        self.engine.sum_shares(found)
        return found.cpu().numpy()

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step, numbered from 0."""
        chosen = self.settings
        factor = lr_factor(chosen.lr_schedule, step, self.schedule.num_steps, chosen.warmup_steps)
        return (chosen.learning_rate or LEARNING_RATE) * factor

    @torch.no_grad()
    def measure_heldout(self) -> dict[str, float]:
        """Return loss and metrics of the held-out rows. A collective."""
        return self._sums(self.heldout, self.heldout_facts, self.measure)

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint keeps beside weights, optimizer and random state."""
        return {"step": step, "digest": self.digest}

    def _measure(self, step: int, metrics: dict[str, float]) -> None:
        """Add the held-out loss to the metrics of a step."""
        if self.heldout:
            metrics |= {f"sft/heldout_{name}": value for name, value in self.measure_heldout().items()}
            if step == 0:
                self._report(0, metrics)
                self.say(f"sft: before training{_heldout(metrics)}")

    def _report(self, step: int, metrics: dict[str, float]) -> None:
        if self.engine.rank == 0:
            self.on_step(step, metrics)

    def _plan(self, rows: Sequence[Encoded]) -> list[list[int]]:
        """Return the micro-batches of this rank."""
        packing = None
        if self.engine.shares_prefixes:
            # One group: what rows begin with alike, such as a system message, is computed once.
            packing = pack_rows([row.ids for row in rows], [0] * len(rows))
        lengths = [len(row.ids) for row in rows]
        units = [row // 2 for row in range(len(rows))] if self.objective.paired else None
        plans = plan_micro_batches(lengths, self.micro_batch_tokens, self.engine.num_shares, units, packing)
        # Both rows of a pair are in one part; in the order of rows they stand side by side.
        return [sorted(part) for part in plans[self.engine.share]]

    def _values(self, rows: Sequence[Encoded], objective: Objective, seed: int = 0) -> Tensor:
        padded = pad(rows)
        return objective.values(self.engine, padded.ids, padded.mask, {IMAGES: padded.images}, seed)


def pad(rows: Sequence[Encoded]) -> Tensors:
    """Return rows as tensors; no rows give one of length 2 of which nothing is learned."""
    width = max((len(row.ids) for row in rows), default=2)
    ids = torch.zeros(max(1, len(rows)), width, dtype=torch.long)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.from_numpy(row.ids).long()
        mask[number, : len(row.mask)] = torch.from_numpy(row.mask)
    mask[:, 0] = False
    return Tensors(ids, mask, [row.images for row in rows])


def duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _heldout(metrics: dict[str, float]) -> str:
    found = metrics.get("sft/heldout_loss")
    return "" if found is None else f"  held-out loss {found:.4f}"
