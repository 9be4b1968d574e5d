"""What commitments to hidden states rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe, ruled_out
from asyncrl.extensions.commitments.settings import CommitmentsConfig
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps engines from committing to hidden states that the trainer can compute again."""
    if not recipe.section(CommitmentsConfig).commitments:
        return
    speculative, quantization = (
        value_at(recipe, f"engine.{key}") for key in ("speculative.method", "quantization")
    )
    yield from ruled_out(
        "for train.commitments=true",
        (
            "engine.keep_kv",
            recipe.engine.keep_kv,
            "false",
            "states over an older cache are of no one version",
        ),
        ("engine.speculative.method", speculative != "off", "'off'", "several tokens come of one pass"),
        ("engine.quantization", quantization != "off", "'off'", "how far rounding moves states is not known"),
        ("env.name", recipe.env.name == "agent", "an environment", "the gateway does not keep commitments"),
        ("train.max_logp_error", not recipe.train.max_logp_error, "above 0", "both are checked in one pass"),
        (
            "rollout.branches",
            value_at(recipe, "rollout.branches") > 0,
            "0",
            "a branch may begin inside a commitment",
        ),
        ("policies", bool(recipe.policies), "left out", "only a run's own policy is checked"),
    )


CONFLICTS = Conflicts(sections=section_problems)
