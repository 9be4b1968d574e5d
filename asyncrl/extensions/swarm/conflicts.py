"""What groups of other runs rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.algo.needs import KNOWN
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, older_groups
from asyncrl.extensions.swarm.settings import SwarmConfig
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps a run from training other runs' groups beside its own."""
    if not recipe.section(SwarmConfig).url:
        return
    for key, wrong, why in (
        (
            "train.schedule='periodic'",
            recipe.train.schedule == "periodic",
            "it trains on groups as they arrive",
        ),
        (
            "train.router_replay",
            value_at(recipe, "train.router_replay"),
            "experts are those of another model",
        ),
        ("policies", bool(recipe.policies), "groups are of one policy"),
        (
            "opponents.choose",
            value_at(recipe, "opponents.choose") != "off",
            "others do not have its past versions",
        ),
        ("env.name='agent'", recipe.env.name == "agent", "its tasks mean nothing to others"),
        ("rollout.branches", value_at(recipe, "rollout.branches") > 0, "groups are of whole episodes"),
    ):
        if wrong:
            yield f"{key} must be left out with swarm.url: {why}"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective to which groups of others bring too little."""
    url = recipe.section(SwarmConfig).url
    if url and (lacking := sorted(asked.words & {"agents", "answers", "branches", "greedy"})):
        yield (
            f"swarm.url: must be left out for an objective that needs {KNOWN[lacking[0]]}, which groups of other runs "
            f"do not bring; got {url!r}"
        )
    yield from older_groups(asked, "swarm.url", url, "left out")


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
