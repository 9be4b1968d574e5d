"""What past versions that play one side rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.league.settings import OpponentsConfig, exploiters
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps past versions from playing one side of the episodes."""
    chosen = recipe.section(OpponentsConfig).choose
    if chosen == "off":
        return
    if not recipe.lora.rank:
        yield (
            f"lora.rank must be above 0 for opponents.choose={chosen!r}: engines hold past versions as adapters beside "
            "the newest one; 'off' is self-play, which trains all weights, too"
        )
    for key, wrong, why in (
        (
            "engine.weight_transfer",
            recipe.engine.weight_transfer != "shared_file",
            "engines read past versions from the folder of weights",
        ),
        (
            "policies",
            exploiters(recipe.policies).keys() != recipe.policies.keys(),
            "each of them would need a population of its own, unless it is an exploiter",
        ),
        (
            "outer.url",
            bool(value_at(recipe, "outer.url")),
            "the runs would deal each other's policies different opponents",
        ),
        ("env.name='agent'", recipe.env.name == "agent", "an agent behind the gateway plays alone"),
        (
            "rollout.branches",
            value_at(recipe, "rollout.branches") > 0,
            "branches follow the main agent's conversation",
        ),
        ("rollout.hinted", value_at(recipe, "rollout.hinted") > 0, "hints are for the main agent"),
        (
            "judge",
            bool(value_at(recipe, "judge.active")),
            "a judge gives all agents of an episode its score",
        ),
    ):
        if wrong:
            yield f"{key} must be left out with opponents.choose={chosen!r}: {why}"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective with a baseline of one player."""
    if "greedy" in asked.words and recipe.section(OpponentsConfig).choose != "off":
        yield (
            "opponents.choose: must be 'off' for an objective with a greedy baseline, which would be the main agent's "
            f"whoever plays it; got {recipe.section(OpponentsConfig).choose!r}"
        )


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
