"""What further policies rule out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.types import MAIN_POLICY

POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""It is part of folders, files of the run and addresses of engines."""


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield the conflicts of further policies with each other and with the rest of the recipe."""
    if not recipe.policies:
        return
    if recipe.eval.every > 0:
        yield (
            "eval.every must be left out where there are policies: an evaluation during training loads one policy"
        )
    players: dict[str, str] = {}
    for name, policy in recipe.policies.items():
        if not POLICY_NAME.fullmatch(name):
            yield (
                f"policies.{name}: a policy's name must consist of letters, digits, '-' and '_' and begin with a "
                f"letter or digit, got {name!r}"
            )
        if name == MAIN_POLICY:
            yield (
                f"policies.{name}: this is the policy that plays the agents no other one names; give this one another "
                "name, or change the recipe's own sections"
            )
        if policy.needs_agents and not policy.agents:
            yield f"policies.{name}.agents: list should have at least 1 item"
        for agent in policy.agents:
            if agent in players:
                yield (f"policies.{name}.agents: {agent!r} is already played by policies.{players[agent]}")
            players[agent] = name


CONFLICTS = Conflicts(sections=section_problems)
