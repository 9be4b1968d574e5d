"""What scoring tokens under the versions that sampled them rules out, or asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, ruled_out
from asyncrl.extensions.old_policy.settings import OldPolicyConfig, OldPolicyPlacement


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a GPU for no process, and what keeps engines from being asked before each update."""
    gpus = recipe.section(OldPolicyPlacement).old_policy
    if gpus and recipe.section(OldPolicyConfig).old_policy != "process":
        yield f"placement.old_policy must be left out without train.old_policy='process', whose GPU it is, got {gpus}"
    if recipe.section(OldPolicyConfig).old_policy != "interrupt":
        return
    schedule = recipe.train.schedule
    yield from ruled_out(
        "for train.old_policy='interrupt'",
        (
            "train.schedule",
            schedule not in ("asynchronous", "partial"),
            "'asynchronous' or 'partial'",
            f"under {schedule!r} no episode spans two versions",
        ),
        (
            "buffer.max_staleness",
            recipe.buffer.max_staleness == 0,
            "above 0",
            "without it no token is of an earlier version",
        ),
        ("lora.rank", recipe.lora.rank > 0, "0", "requests go on under the adapter they began with"),
        (
            "scale.engine",
            "engine" in recipe.numbers,
            "left out",
            "an engine that leaves takes along what it has sampled",
        ),
    )


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective that reads no such scores."""
    place = recipe.section(OldPolicyConfig).old_policy
    if place != "trainer" and "snapshots" not in asked.words:
        yield (
            f"train.old_policy: {place!r} scores tokens for an objective that reads them, such as "
            "one with algo.proximal.name='snapshot'; allowed otherwise: trainer"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield a place for scores that is sent no images."""
    if recipe.section(OldPolicyConfig).old_policy != "trainer":
        yield "train.old_policy"


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield what nobody has run with it."""
    if recipe.policies and recipe.section(OldPolicyConfig).old_policy == "interrupt":
        yield "policies with train.old_policy='interrupt'"


CONFLICTS = Conflicts(
    sections=section_problems, objective=objective_problems, with_images=with_images, untried=untried
)
