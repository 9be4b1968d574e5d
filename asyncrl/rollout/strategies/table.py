"""All strategies, and those of a run."""

from __future__ import annotations

from asyncrl.extensions.table import Row, merged
from asyncrl.rollout.group import GroupStrategy
from asyncrl.rollout.strategies.parts import WorkerParts

CORE = (
    Row(
        name="policies",
        path="asyncrl.rollout.strategies.policies:configured",
        asked=("policies",),
        place=10,
    ),
    Row(
        name="group_rewards",
        path="asyncrl.rollout.strategies.group_rewards:configured",
        asked=("rewards",),
        place=20,
    ),
    Row(
        name="answers",
        path="asyncrl.rollout.strategies.answers:configured",
        asked=("needs.answers",),
        place=30,
    ),
)
STRATEGIES = {row.name: row for row in merged("strategies", CORE)}
"""What makes each strategy of a worker's parts, or None. The outermost is the first: who samples the turns, what is
noted and shown, then what is given of them."""


def configured(parts: WorkerParts) -> tuple[GroupStrategy, ...]:
    """Return the strategies of a run, the outermost first. Raises `ConfigError` for what cannot be played so."""
    made = [row.load()(parts) for row in STRATEGIES.values() if row.wanted(parts)]
    return tuple(strategy for strategy in made if strategy is not None)
