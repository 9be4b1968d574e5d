"""What a KV cache that reaches into host memory rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.kv_offload.settings import KvOffloadConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what would find wrong blocks there, or none."""
    size_gib, nodes = recipe.section(KvOffloadConfig).kv_offload_gib, recipe.engine.num_machines
    if size_gib and nodes > 1:
        yield (
            f"engine.kv_offload_gib must be 0 with engine.nodes={nodes}: the ranks share blocks in the memory of one "
            "machine"
        )
    if size_gib and recipe.engine.keep_kv:
        yield (
            "engine.kv_offload_gib must be 0 where engine.keep_kv is true: what old weights computed would be found in "
            f"host memory under new ones, got {size_gib:g}"
        )


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield what nobody has run with it."""
    if recipe.section(KvOffloadConfig).kv_offload_gib and recipe.engine.pipeline_parallel > 1:
        yield "engine.kv_offload_gib with engine.pipeline_parallel"


CONFLICTS = Conflicts(sections=section_problems, untried=untried)
