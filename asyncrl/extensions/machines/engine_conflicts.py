"""What an engine over several machines rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe, ruled_out
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps one engine from being spread over machines."""
    engine, nodes = recipe.engine, recipe.engine.num_machines
    if nodes == 1:
        return
    if engine.ranks % nodes:
        yield (
            f"engine.nodes must divide the {engine.ranks} rank{'s' * (engine.ranks > 1)} of {engine.said_ranks}, got "
            f"{nodes}"
        )
    yield from ruled_out(
        f"with engine.nodes={nodes}",
        (
            "lora.rank",
            recipe.lora.rank > 0,
            "0",
            "vLLM reads adapters from files, on the machine of its server",
        ),
        (
            "train.router_replay",
            value_at(recipe, "train.router_replay"),
            "false",
            "experts are recorded in the memory of one machine",
        ),
    )


CONFLICTS = Conflicts(sections=section_problems)
