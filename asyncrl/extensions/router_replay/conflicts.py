"""What the replay of experts rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe, ruled_out
from asyncrl.extensions.router_replay.settings import RouterReplayConfig
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps engines from recording experts that the trainer can use."""
    if not recipe.section(RouterReplayConfig).router_replay:
        return
    yield from ruled_out(
        "for train.router_replay=true",
        (
            "engine.keep_kv",
            recipe.engine.keep_kv,
            "false",
            "kept blocks would be taken for those of new weights",
        ),
        (
            "engine.kv_offload_gib",
            value_at(recipe, "engine.kv_offload_gib") > 0,
            "0",
            "vLLM keeps the experts of a block by its place on the GPU",
        ),
        (
            "engine.speculative.method",
            value_at(recipe, "engine.speculative.method") != "off",
            "'off'",
            "a drafter's tokens that are rejected have been routed, too",
        ),
        ("env.name", recipe.env.name == "agent", "an environment", "the gateway does not keep experts"),
        (
            "train.old_policy",
            value_at(recipe, "train.old_policy") != "trainer",
            "'trainer'",
            "elsewhere tokens are scored without their experts",
        ),
    )


CONFLICTS = Conflicts(sections=section_problems)
