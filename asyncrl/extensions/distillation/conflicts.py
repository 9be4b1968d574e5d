"""What a teacher asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config_sections import is_url
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.distillation.settings import TeacherConfig
from asyncrl.extensions.table import by_name


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a teacher that is missing, or that cannot be asked for what the objective reads."""
    if asked.words & {"teacher", "teacher_logits"} and not recipe.section(TeacherConfig).path:
        yield (
            "teacher.path: this objective needs a teacher; give a model, a vLLM server's address"
            f"{''.join(f', or {name!r}' for name in by_name('teachers'))}"
        )
    if "teacher_logits" in asked.words and is_url(recipe.section(TeacherConfig).path):
        yield (
            "teacher.path: this objective reads the teacher's whole distribution, which no server returns; give a model"
        )
    if is_url(recipe.section(TeacherConfig).path) and recipe.rollout.temperature != 1.0:
        yield (
            "teacher.path: a served model scores at temperature 1; rollout.temperature must be 1, got "
            f"{recipe.rollout.temperature:g}"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield a teacher that is shown no images."""
    if is_url(recipe.section(TeacherConfig).path):
        yield "teacher.path"


CONFLICTS = Conflicts(objective=objective_problems, with_images=with_images)
