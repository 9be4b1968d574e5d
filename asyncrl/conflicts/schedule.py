"""What a schedule implies, and rules out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncrl.algo import signature
from asyncrl.algo.settings import part_needs
from asyncrl.config_sections import SCHEDULES
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield limits and budgets that the schedule does not leave open."""
    implied = SCHEDULES[recipe.train.schedule]
    if implied is not None and recipe.buffer.max_staleness != implied:
        yield (
            f"buffer.max_staleness must be {implied} under train.schedule={recipe.train.schedule!r} (it may be "
            f"left out), got {recipe.buffer.max_staleness}"
        )
    for name, given in (
        ("token_budget", recipe.buffer.token_budget > 0),
        ("recycle", not recipe.buffer.recycle),
    ):
        if given and recipe.train.schedule not in ("asynchronous", "partial"):
            yield (
                f"buffer.{name} must be left out under train.schedule={recipe.train.schedule!r}, which trains "
                "whole batches of one version"
            )


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield what the schedule cannot do."""
    schedule = recipe.train.schedule
    if asked.settings["staleness_control"]["enabled"] and schedule not in ("asynchronous", "partial"):
        yield (
            f"algo.staleness_control.enabled: must be false under train.schedule={schedule!r}, whose limit is fixed"
        )
    if schedule != "periodic":
        return
    whole = {
        f"train.num_minibatches={recipe.train.num_minibatches}": recipe.train.num_minibatches > 1,
        **_beyond_group("advantage", asked.settings["advantage"]),
        **_beyond_group("normalize", asked.settings["normalize"]),
        f"algo.loss.name={asked.settings['loss']['name']!r}": _measures_batch("loss", asked.settings["loss"]),
        "algo.denominator='kept'": asked.settings["denominator"] == "kept",
        "algo.lr_scaling": bool(asked.settings["lr_scaling"]["power"]),
        "algo.kl.where='reward'": asked.settings["kl"]["where"] == "reward",
        "a critic": "values" in asked.words,
        **{
            f"algo.corrections: {part['name']!r}": _measures_batch("correction", part)
            for part in asked.settings["corrections"]
        },
    }
    for part in asked.settings["filters"]:
        whole |= _beyond_group("filter", part)
    wrong = [name for name, reads in whole.items() if reads]
    if wrong:
        yield (
            f"train.schedule: 'periodic' trains on groups as they arrive, which {wrong[0]} does not allow since it "
            "reads the whole batch; allowed: synchronous, one_step_off, asynchronous, partial"
        )


def _beyond_group(kind: str, part: dict[str, Any]) -> dict[str, bool]:
    """Return the key for which a part of the objective reads beyond a row's own group, with True; {} if it does not."""
    found = signature.read(kind, part["name"])
    key = found.beyond_group(part) if found is not None else "name"
    return {} if key is None else {f"algo.{kind}.{key}={part.get(key)!r}": True}


def _measures_batch(kind: str, part: dict[str, Any]) -> bool:
    return bool(part_needs(kind, part) & {"step_statistics", "ratio_statistics"})


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
