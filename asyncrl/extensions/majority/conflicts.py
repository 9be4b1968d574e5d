"""What a reward by majority rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, greedy_baseline, ruled_out
from asyncrl.extensions.majority.settings import MajorityConfig
from asyncrl.extensions.table import value_at

LEAST_GROUP = 3
"""Of two episodes both are rewarded or none: nothing to learn from."""


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield settings that nothing reads, groups too small to vote, and rewards that the vote would replace."""
    majority = recipe.section(MajorityConfig)
    if majority.mode == "off":
        for key, given, default in (
            ("weight", majority.weight, 1.0),
            ("least_share", majority.least_share, 0.0),
        ):
            if given != default:
                yield f"majority.{key}: is not read with majority.mode='off', got {given:g}"
        return
    if recipe.rollout.group_size < LEAST_GROUP:
        yield (
            f"rollout.group_size must be at least {LEAST_GROUP} with majority.mode={majority.mode!r}: of two answers "
            f"neither has the majority, or both; got {recipe.rollout.group_size}"
        )
    replaces = majority.mode == "replace"
    yield from ruled_out(
        f"with majority.mode={majority.mode!r}",
        ("env.name", recipe.env.name == "agent", "another than 'agent'", "an agent reports its own reward"),
        (
            "opponents.choose",
            value_at(recipe, "opponents.choose") != "off",
            "'off'",
            "a game is won or lost, and its moves are no answers",
        ),
        (
            "judge",
            replaces and bool(value_at(recipe, "judge.active")),
            "left out",
            "the vote takes the place of their score; majority.mode='add' adds to it",
        ),
    )


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a baseline that no vote is taken on."""
    yield from greedy_baseline(asked, "majority.mode", recipe.section(MajorityConfig).mode)


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield further policies."""
    if recipe.section(MajorityConfig).mode != "off" and recipe.policies:
        yield "majority.mode with policies"


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems, untried=untried)
