"""What an engine in stages rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe, ruled_out
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what an engine does not do whose layers are split into stages."""
    stages = recipe.engine.pipeline_parallel
    if stages == 1:
        return
    yield from ruled_out(
        f"with engine.pipeline_parallel={stages}",
        (
            "train.router_replay",
            value_at(recipe, "train.router_replay"),
            "false",
            "each stage knows the experts of its own layers alone",
        ),
        (
            "train.commitments",
            value_at(recipe, "train.commitments"),
            "false",
            "the first stage has no final hidden states",
        ),
    )


CONFLICTS = Conflicts(sections=section_problems)
