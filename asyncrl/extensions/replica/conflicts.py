"""What the second copy of the ledger rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.replica.settings import ReplicaConfig
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a replica of its own beside that of a buffer on a node."""
    replica = recipe.section(ReplicaConfig).replica
    if value_at(recipe, "buffer.machine") == "node" and replica:
        yield (
            "buffer.replica must be left out for buffer.machine='node', whose replica the head has, got "
            f"{replica!r}"
        )


CONFLICTS = Conflicts(sections=section_problems)
