"""What a policy that teaches itself excludes and asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.distillation.settings import TeacherConfig
from asyncrl.extensions.table import value_at

NAME = "self"
"""Stands for it in `teacher.path`; `./self` is a folder of that name."""


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield what leaves it nothing to be shown, or cannot be run."""
    if recipe.section(TeacherConfig).path != NAME or not asked.words & {"teacher", "teacher_logits"}:
        return
    if recipe.rollout.group_size == 1 and not value_at(recipe, "train.complete_groups"):
        yield (
            "rollout.group_size: must be above 1 for teacher.path='self', which is shown a success of another episode "
            "of the group, got 1"
        )
    if "teacher_logits" in asked.words and recipe.train.zero_stage == 3:
        yield (
            "train.zero_stage: must be below 3 where teacher.path='self' is compared over the whole vocabulary: the "
            "policy reads another row inside its own forward pass; algo.loss.name='opd_sampled' allows 3"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield it, which is shown no images."""
    if recipe.section(TeacherConfig).path == NAME:
        yield "teacher.path"


CONFLICTS = Conflicts(objective=objective_problems, with_images=with_images)
