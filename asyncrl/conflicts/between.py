"""The checks between the policies of one run, each of which is without conflicts by itself."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import ManyPolicies
from asyncrl.conflicts.registry import FEATURES
from asyncrl.errors import ConfigError


def policy_problems(recipe: ManyPolicies) -> Iterator[str]:
    """Yield the conflicts between the recipe's own policy and further ones."""
    for one in FEATURES:
        yield from one.policies(recipe)


def check_policy_objectives(recipe: ManyPolicies) -> None:
    """Refuse objectives of further policies that do not go with the recipe's own. Raises `ConfigError`."""
    for one in FEATURES:
        for problem in one.policy_objectives(recipe):
            raise ConfigError(problem)
