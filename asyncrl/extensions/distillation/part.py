"""A teacher whose log-probabilities, or whole distributions, the loss reads: a model here or on a server, or what an
extension names (`teachers`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algo.objective import Objective
from asyncrl.config_sections import is_url
from asyncrl.data.token_extras.table import shown_to_all
from asyncrl.extensions.distillation.losses import full_kl
from asyncrl.extensions.distillation.settings import TeacherConfig
from asyncrl.extensions.table import by_name
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
    """See `asyncrl.extensions.distillation.losses.full_kl`."""

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
    """Return the part of a run, as the section `teacher` says. A collective.

    What an extension names (`teachers`) is made of the context and the direction of the divergence that the loss
    reads, and is called as this one is.
    """
    config = context.config
    path, direction = config.section(TeacherConfig).path, direction_of(context.objective)
    if named := by_name("teachers").get(path):
        part: StepPart = named.load()(context, direction)
        return part
    if is_url(path):
        return Teacher(EngineScorer(path))
    return Teacher(load_still(config, lambda: load_other(config, path)), direction)


def direction_of(objective: Objective) -> str:
    """Return which divergence over the whole vocabulary the loss reads, "" where it reads none."""
    return str(objective.params("loss")["direction"]) if "teacher_logits" in objective.needs else ""
