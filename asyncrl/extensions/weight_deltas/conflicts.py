"""What deltas rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe, ruled_out
from asyncrl.extensions.weight_deltas.settings import DeltaConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield an engine over several machines."""
    if (nodes := recipe.engine.num_machines) > 1:
        yield from ruled_out(
            f"with engine.nodes={nodes}",
            (
                "engine.weight_delta",
                recipe.section(DeltaConfig).weight_delta,
                "false",
                "the machines of an engine get whole files from each other",
            ),
        )


CONFLICTS = Conflicts(sections=section_problems)
