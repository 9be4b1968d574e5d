"""What groups that earlier successes complete rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.algo.needs import KNOWN
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, older_groups
from asyncrl.extensions.replay.settings import ReplayConfig
from asyncrl.extensions.table import value_at

UNRECORDED = frozenset({"observations", "matches", "components", "greedy", "answers"})
"""Words of an objective for what the files of a run leave out, or what only its own settings have episodes say."""


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps groups from being completed by earlier successes."""
    given = recipe.section(ReplayConfig)
    if given.complete_from and not given.complete_groups:
        yield f"train.complete_groups must be true with train.complete_from={given.complete_from!r}, got false"
    if given.complete_from and value_at(recipe, "train.router_replay"):
        yield "train.complete_from must be empty with train.router_replay=true: files of episodes have no experts"
    if not given.complete_groups:
        return
    for wrong, why in (
        (
            recipe.train.schedule == "periodic",
            "train.schedule='periodic', which trains on groups as they arrive",
        ),
        (
            value_at(recipe, "curriculum.name") == "file_order",
            "curriculum.name='file_order', which plays each task once",
        ),
    ):
        if wrong:
            yield f"train.complete_groups must be false with {why}"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective to which a version long ago means nothing."""
    yield from older_groups(
        asked, "train.complete_groups", recipe.section(ReplayConfig).complete_groups, "false"
    )
    unknown = sorted(asked.words & UNRECORDED)
    if unknown and recipe.section(ReplayConfig).complete_from:
        yield (
            f"train.complete_from must be empty for an objective that reads {KNOWN[unknown[0]]}: files of episodes "
            "need not have it"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield what is not possible for a policy that reads images."""
    if recipe.section(ReplayConfig).complete_from:
        yield "train.complete_from"


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems, with_images=with_images)
