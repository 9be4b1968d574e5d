"""What ranks that have a part of each layer rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, ruled_out
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what does not go together with ranks that have a part of each layer."""
    train = recipe.train
    if train.tensor_parallel == 1:
        return
    yield from ruled_out(
        f"with train.tensor_parallel={train.tensor_parallel}",
        (
            "train.ranks",
            train.ranks % train.tensor_parallel > 0,
            "a multiple of it",
            f"so many ranks have a part of each layer, got {train.ranks}",
        ),
        (
            "train.zero_stage",
            train.zero_stage not in (1, 2),
            "1 or 2",
            "the norm of gradients is taken over all parts there, and ZeRO-3 divides the layers by itself",
        ),
        ("train.sequence_parallel", train.sequence_parallel > 1, "1", "both divide the heads over ranks"),
        ("train.optimizer", train.optimizer == "muon", "another one", "Muon needs whole matrices"),
        (
            "train.router_replay",
            value_at(recipe, "train.router_replay"),
            "false",
            "models with experts are not divided",
        ),
        ("lora.rank", recipe.lora.rank > 0, "0", "adapters are not divided"),
        (
            "engine.quantization",
            value_at(recipe, "engine.quantization") != "off",
            "'off'",
            "each rank would round its own part",
        ),
        (
            "outer.url",
            bool(value_at(recipe, "outer.url")),
            "left out",
            "trainers exchange whole weights of their optimizers",
        ),
    )


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective that reads what each rank has a part of."""
    if (count := recipe.train.tensor_parallel) > 1 and "score_norms" in asked.words:
        yield (
            "train.tensor_parallel: must be 1 where algo.advantage reads the norm of each trajectory's gradient, of "
            f"which each rank would have a part; got {count}"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield ranks that have no part of a vision tower."""
    if recipe.train.tensor_parallel > 1:
        yield "train.tensor_parallel"


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield what nobody has run with it."""
    if recipe.policies and recipe.train.tensor_parallel > 1:
        yield "policies with train.tensor_parallel"


CONFLICTS = Conflicts(
    sections=section_problems, objective=objective_problems, with_images=with_images, untried=untried
)
