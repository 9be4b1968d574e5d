"""Which ways of weights to engines there are."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.table import rows
from asyncrl.import_path import FORMS


def weight_transfers() -> tuple[str, ...]:
    """Return the names that `engine.weight_transfer` may have: the core's, then those of the extensions."""
    return "shared_file", *(row.name for row in rows("weight_carriers"))


def listed(names: tuple[str, ...]) -> str:
    """Return names as a message has them: 'a', 'b' or 'c'."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}"


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a way that is neither known nor an import path."""
    name, known = recipe.engine.weight_transfer, weight_transfers()
    if name not in known and ":" not in name:
        yield (
            f"engine.weight_transfer: must be {listed(known)}, or an import path such as {FORMS}, got {name!r}"
        )


CONFLICTS = Conflicts(sections=section_problems)
