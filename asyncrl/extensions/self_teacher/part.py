"""The policy as its own teacher: it scores an episode again, having read another episode of the group that succeeded.

    the teacher's row:  success up to its last sampled token | the row
    T(y_t) = sg pi(y_t | success, x, y_<t),  by the current weights

Sources: SDPO, arXiv 2601.20802, where a success of the same group stands in for feedback that the environment does not
give; OPSD, arXiv 2601.18734. Both write a new prompt around what the teacher is shown. Here its tokens stand before
those of the row, as the engine read and sampled them: nothing is tokenized again. SDPO's averaged teacher is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.curation.signal import succeeded
from asyncrl.algo.metrics import Metric, Metrics, mean_over
from asyncrl.data.token_extras.table import shown_to_all
from asyncrl.errors import ConfigError
from asyncrl.extensions.distillation.part import TEACHER_KL, compared_with
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.token_scores import Compared, Projection
from asyncrl.train.step.gradient import Step
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.serve_rows import Plan, serve_rows, share_batch
from asyncrl.train.step.step_batch import Rows, StepBatch, pad_rows
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.whole_batch import whole_batch
from asyncrl.types import IMAGES, NOT_SAMPLED, Trajectory


@dataclass(frozen=True, slots=True)
class Shown:
    """A batch as the teacher reads it."""

    batch: StepBatch
    """The same rows in the same order, those that are taught each after what the teacher is shown."""
    taught: list[int]
    """The rows that have a teacher; the others leave the loss."""
    metrics: Metrics = field(default_factory=dict)
    """On the first rank."""


class SelfTeacher(StepPart):
    """Scores rows by the trained policy itself. `max_tokens` bounds what it reads: the context of the model.

    direction: as of `Teacher`.
    """

    name = "teacher"

    def __init__(self, max_tokens: int, direction: str = "") -> None:
        self.max_tokens = max_tokens
        self.direction = direction
        self.gives = (TEACHER_KL,) if direction else ()

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`; rows without a teacher leave the loss, and their log-probabilities are 0."""
        shown = self.show(engine, batch)
        found.of_parts[self.name] = shown
        found.trained = frozenset(shown.taught)
        found.metrics |= shown.metrics
        if not self.direction:
            found.tensors["teacher_logp"] = whole_batch(
                engine, shown.batch, settings,
                lambda rows: engine.outputs(rows.token_ids, rows.mask, settings.temperature),
                ("logp",), shown.taught,
            )["logp"]  # fmt: skip

    def serve(self, engine: TrainEngine, plan: Plan, tensors: StepTensors) -> None:
        """See `StepPart`."""
        if self.direction:
            serve_rows(engine, tensors.of_parts[self.name].batch, plan)

    def compared(self, step: Step, micro: Rows) -> Compared | None:
        """See `StepPart`."""
        if not self.direction:
            return None
        shown: Shown = step.tensors.of_parts[self.name]
        return compared_with(*self.states(step.engine, shown, micro.indices), self.direction)

    def show(self, engine: TrainEngine, batch: StepBatch) -> Shown:
        """Return the batch as the teacher reads it. A collective.

        Raises `ConfigError` for rows with images.
        """
        if engine.rank != 0:
            return Shown(share_batch(engine, None), engine.on_first(list))
        chosen, too_long = choose_successes(batch, self.max_tokens)
        rows = tuple(
            _after(batch.trajectories[chosen[row]], t) if row in chosen else _unrecorded(t)
            for row, t in enumerate(batch.trajectories)
        )
        shown = share_batch(engine, StepBatch(rows, batch.group, batch.step))
        metrics = {
            "self_teacher/taught_fraction": _share(chosen, batch.num_rows),
            "self_teacher/too_long_fraction": _share(too_long, batch.num_rows),
        }
        return Shown(shown, engine.on_first(lambda: sorted(chosen)), metrics)

    @torch.no_grad()
    def states(self, engine: TrainEngine, shown: Shown, rows: list[int]) -> tuple[Tensor, Projection]:
        """Return the hidden state [M,H] before each sampled token of rows that this rank has, and the projection.

        What was recorded of a row is not followed: after a success its tokens may go to other experts.
        """
        module = engine.engine.module
        padded = pad_rows(shown.batch, rows)
        on_device = padded.token_ids.to(engine.device), padded.mask.to(engine.device)
        states = module(*on_device, 1.0, ("states",))["states"]
        return states, module.model.lm_head.forward.logits


def self_teacher(context: PartContext, direction: str) -> StepPart:
    """Return the part of a run. direction: as of `Teacher`."""
    shape = context.engine.engine.module.model.config.get_text_config()
    room = getattr(shape, "max_position_embeddings", None)
    return SelfTeacher(max(room or 0, context.config.max_tokens), direction)


def choose_successes(batch: StepBatch, max_tokens: int) -> tuple[dict[int, int], set[int]]:
    """Return which row is shown to the teacher of each row, and the rows for which none is short enough.

    It is of another episode of the group, and of the same agent: that with the highest reward, of equal ones the
    shortest that fits.
    """
    successes: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, t in enumerate(batch.trajectories):
        if succeeded(t):
            successes[_task_and_agent(batch, row)].append(row)
    for rows in successes.values():
        rows.sort(key=lambda row: (-batch.trajectories[row].reward, _end(batch.trajectories[row]), row))
    chosen: dict[int, int] = {}
    too_long: set[int] = set()
    for row, t in enumerate(batch.trajectories):
        others = [
            other
            for other in successes.get(_task_and_agent(batch, row), ())
            if batch.trajectories[other].rollout != t.rollout
        ]
        short = [other for other in others if _end(batch.trajectories[other]) + t.num_tokens <= max_tokens]
        if short:
            chosen[row] = short[0]
        elif others:
            too_long.add(row)
    return chosen, too_long


def _task_and_agent(batch: StepBatch, row: int) -> tuple[int, str]:
    return int(batch.group[row]), str(batch.trajectories[row].info.get("agent", ""))


def _end(t: Trajectory) -> int:
    """Return how many tokens there are up to the last sampled one."""
    return int(np.flatnonzero(t.loss_mask)[-1]) + 1


def _unrecorded(t: Trajectory) -> Trajectory:
    """Return a row without what is recorded of the model that sampled it."""
    return replace(t, extras=shown_to_all(t.extras))


def _after(success: Trajectory, t: Trajectory) -> Trajectory:
    """Return a row after what its teacher is shown, of which nothing is trained."""
    if IMAGES in success.extras or IMAGES in t.extras:
        raise ConfigError(
            "teacher.path: 'self' is not for rows with images, whose places in a row would move"
        )
    read = success.token_ids[: _end(success)]
    return replace(
        _unrecorded(t),
        token_ids=np.concatenate([read, t.token_ids]),
        loss_mask=np.concatenate([np.zeros(len(read), bool), t.loss_mask]),
        behavior_logprobs=np.concatenate([np.zeros(len(read), np.float32), t.behavior_logprobs]),
        versions=np.concatenate([np.full(len(read), NOT_SAMPLED, np.int32), t.versions]),
        turns=(),
    )


def _share(rows: Collection[int], num_rows: int) -> Metric:
    found = torch.zeros(num_rows)
    found[sorted(rows)] = 1.0
    return mean_over(found)
