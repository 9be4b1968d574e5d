"""What tasks of one's own rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield two sources of tasks, and too few of them."""
    if recipe.env.task_file and recipe.data.train:
        yield f"env.task_file must be left out where data.train has the tasks, got {recipe.env.task_file!r}"
    if recipe.env.num_tasks and recipe.env.num_tasks < recipe.buffer.groups_per_step:
        yield (
            f"env.num_tasks must be 0 or at least buffer.groups_per_step={recipe.buffer.groups_per_step}, "
            f"got {recipe.env.num_tasks}"
        )


CONFLICTS = Conflicts(sections=section_problems)
