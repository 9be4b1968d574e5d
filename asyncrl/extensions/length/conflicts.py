"""What a reward for length rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, greedy_baseline, ruled_out
from asyncrl.extensions.length.settings import LengthConfig
from asyncrl.extensions.table import value_at

READ_BY = {
    "least_target": ("exact", "max"),
    "most_target": ("exact", "max"),
    "alpha": ("exact", "max"),
    "delta": ("max",),
    "weight": ("adaptive",),
}
"""Which modes read a setting."""


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield settings that nothing reads, lengths that no episode can have, and agents that cannot be asked."""
    length = recipe.section(LengthConfig)
    for key, modes in READ_BY.items():
        if length.mode not in modes and getattr(length, key) != LengthConfig.model_fields[key].default:
            yield f"length.{key}: is not read with length.mode={length.mode!r}, got {getattr(length, key):g}"
    if length.mode == "off":
        return
    if value_at(recipe, "rollout.branches"):
        yield f"rollout.branches must be 0 with length.mode={length.mode!r}: a branch samples only its own end"
    if not length.targets:
        return
    if length.least_target > length.most_target:
        yield (
            f"length.least_target: must be at most length.most_target={length.most_target}, got "
            f"{length.least_target}"
        )
    if length.most_target >= recipe.engine.max_model_len:
        yield (
            f"length.most_target: must be below engine.max_model_len={recipe.engine.max_model_len}, of which the task "
            f"takes a part, got {length.most_target}"
        )
    yield from ruled_out(
        f"with length.mode={length.mode!r}",
        ("env.name", recipe.env.name == "agent", "another than 'agent'", "an agent writes its own requests"),
    )


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a baseline that knows of no length."""
    yield from greedy_baseline(asked, "length.mode", recipe.section(LengthConfig).mode)


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield further policies."""
    if recipe.section(LengthConfig).mode != "off" and recipe.policies:
        yield "length.mode with policies"


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems, untried=untried)
