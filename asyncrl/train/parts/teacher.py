"""A teacher whose log-probabilities, or whole distributions, the loss reads: a model here, on a server, or the policy
itself (`asyncrl.train.parts.self_teacher`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algo.loss.distill import full_kl
from asyncrl.algo.objective import Objective
from asyncrl.config_sections import SELF_TEACHER, is_url
from asyncrl.data.token_extras.table import shown_to_all
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.token_scores import Compared, Projection, tempered
from asyncrl.train.parts.frozen import DividedPolicy, FrozenPolicy
from asyncrl.train.parts.needed_models import load_other, load_still
from asyncrl.train.parts.scoring import EngineScorer
from asyncrl.train.step.gradient import Step
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.step_batch import Rows, StepBatch
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors

TEACHER_KL = "teacher_kl"
"""The extra of `LossInputs` that holds the divergence from a teacher's distributions."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Implements `Compare`: the divergence of the policy's distributions from a teacher's."""

    head: Projection
    """The teacher's vocabulary projection."""
    direction: str
    """See `asyncrl.algo.loss.distill.full_kl`."""

    def __call__(self, logits: Tensor, states: Tensor, temperature: float) -> Tensor:
        with torch.no_grad():
            theirs = tempered(self.head(states), temperature)
        return full_kl(logits, theirs, self.direction)


def compared_with(states: Tensor, head: Projection, direction: str) -> Compared:
    """Return what has the policy compared with a teacher, of whose hidden states these are before sampled tokens."""
    return Compared(TEACHER_KL, states, Divergence(head, direction))


class Teacher(StepPart):
    """Scores the batch, or is compared with in each micro-batch.

    direction: of the divergence between whole distributions; "" where the loss reads log-probabilities alone.
    """

    name = "teacher"

    def __init__(self, policy: FrozenPolicy | DividedPolicy | EngineScorer, direction: str = "") -> None:
        self.policy = policy
        self.direction = direction
        self.gives = (TEACHER_KL,) if direction else ()

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`."""
        if not self.direction:
            found.tensors["teacher_logp"] = self.policy.logp(engine, batch, settings)

    def compared(self, step: Step, micro: Rows) -> Compared | None:
        """See `StepPart`."""
        if not self.direction:
            return None
        assert not isinstance(self.policy, EngineScorer)
        states, head = self.policy.states(
            step.engine, micro.token_ids, micro.mask, shown_to_all(micro.extras)
        )
        return compared_with(states, head, self.direction)

    def release(self) -> None:
        """See `StepPart`."""
        if isinstance(self.policy, FrozenPolicy):
            self.policy.release_device()


def teacher(context: PartContext) -> StepPart:
    """Return the part of a run, as the section `teacher` says. A collective."""
    config, engine = context.config, context.engine
    path, direction = config.teacher.path, direction_of(context.objective)
    if path == SELF_TEACHER:
        from asyncrl.train.parts.self_teacher import SelfTeacher

        shape = engine.engine.module.model.config.get_text_config()
        room = getattr(shape, "max_position_embeddings", None)
        return SelfTeacher(max(room or 0, config.max_tokens), direction)
    if is_url(path):
        return Teacher(EngineScorer(path))
    return Teacher(load_still(config, lambda: load_other(config, path)), direction)


def direction_of(objective: Objective) -> str:
    """Return which divergence over the whole vocabulary the loss reads, "" where it reads none."""
    return str(objective.params("loss")["direction"]) if "teacher_logits" in objective.needs else ""
