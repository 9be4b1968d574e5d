"""Reads a recipe as a machine with GPUs would, wherever it is planned."""

from __future__ import annotations

import json
from collections.abc import Sequence

from asyncrl.config import Config, find_recipe
from asyncrl.launch.models.local_models import load_recipe
from asyncrl.textfile import read_text, read_toml


def load_for_gpus(recipe: str, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration, in bfloat16 where the recipe leaves the type to the machine.

    Raises as `load_recipe`."""
    open_type = ["model.dtype=bfloat16"] if _leaves_type_open(recipe) else []
    return load_recipe(recipe, [*open_type, *overrides])


def _leaves_type_open(recipe: str) -> bool:
    path = find_recipe(recipe)
    try:
        data = json.loads(read_text(path)) if path.suffix == ".json" else read_toml(path)
    except (OSError, ValueError):
        return False  # `load_config` says what is wrong
    model = data.get("model", {})
    return "base" not in data and isinstance(model, dict) and model.get("dtype", "auto") == "auto"
