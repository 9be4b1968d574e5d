"""What a teacher asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config_sections import SELF_TEACHER, is_url
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.table import value_at


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a teacher that is missing, or that cannot be asked for what the objective reads."""
    if asked.words & {"teacher", "teacher_logits"} and not recipe.teacher.path:
        yield (
            "teacher.path: this objective needs a teacher; give a model, a vLLM server's address, or 'self'"
        )
    if "teacher_logits" in asked.words and is_url(recipe.teacher.path):
        yield (
            "teacher.path: this objective reads the teacher's whole distribution, which no server returns; give a model"
        )
    if asked.words & {"teacher", "teacher_logits"} and recipe.teacher.path == SELF_TEACHER:
        yield from _self_teacher(recipe, asked)
    if is_url(recipe.teacher.path) and recipe.rollout.temperature != 1.0:
        yield (
            "teacher.path: a served model scores at temperature 1; rollout.temperature must be 1, got "
            f"{recipe.rollout.temperature:g}"
        )


def _self_teacher(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a self-teacher that has nothing to be shown, or that cannot be run."""
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
    """Yield a teacher that is shown no images."""
    if is_url(recipe.teacher.path) or recipe.teacher.path == SELF_TEACHER:
        yield "teacher.path"


CONFLICTS = Conflicts(objective=objective_problems, with_images=with_images)
