"""What speculative decoding rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.speculation.settings import DRAFT_MODELS, SpeculationConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield temperatures of which exact log-probabilities are not reported."""
    method = recipe.section(SpeculationConfig).speculative.method
    if method == "off":
        return
    why = (
        f"for engine.speculative.method={method!r}: beside speculation vLLM reports exact log-probabilities only for "
        "the distribution before temperature and truncation"
    )
    if recipe.rollout.temperature != 1.0:
        yield f"rollout.temperature must be 1 {why}, got {recipe.rollout.temperature:g}"
    if recipe.eval.temperature not in (0.0, 1.0):
        yield f"eval.temperature must be 0 or 1 {why}, got {recipe.eval.temperature:g}"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a drafter that training would leave behind."""
    method = recipe.section(SpeculationConfig).speculative.method
    if method in DRAFT_MODELS:
        yield (
            f"engine.speculative.method: {method!r} has a drafter with weights of its own, which training does not "
            "update: the further the policy moves, the fewer of its tokens are accepted; allowed in training: off, "
            "ngram, suffix"
        )


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield what nobody has run with it."""
    if recipe.section(SpeculationConfig).speculative.method != "off" and recipe.engine.pipeline_parallel > 1:
        yield "engine.speculative.method with engine.pipeline_parallel"


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems, untried=untried)
