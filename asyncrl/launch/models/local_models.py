"""Models that are stored in a form of their own, as the Hugging Face folders that everything else reads.

Who runs, plans or evaluates a recipe reads it by `load_recipe`; `asyncrl.config.load_config` gives what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.config import Config, load_config, parse_config
from asyncrl.extensions.table import rows
from asyncrl.run.folder import open_run


def load_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration of a recipe that is to be run, as `load_config` does, with local models.

    Raises `ConfigError`, `InputError` and `UnavailableError`.
    """
    return with_local_models(load_config(recipe, overrides))


def reopen_run(folder: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration of a run to resume, with overrides and local models. Raises as `load_recipe`."""
    return with_local_models(open_run(folder, overrides))


def with_local_models(config: Config) -> Config:
    """Return the configuration with each model that an extension makes a folder of as this folder.

    Makes what has not been made. Raises `ConfigError`, `InputError` and `UnavailableError`.
    """
    data: dict[str, Any] = config.model_dump(mode="json")
    places = [("model.path", data["model"])]
    places += [(f"{section}.path", data[section]) for section in config.other_models]
    places += [(f"policies.{name}.model.path", one["model"]) for name, one in data["policies"].items()]
    changed = False
    for key, section in places:
        path = section.get("path", "")
        local = local_model(key, path)
        changed = changed or local != path
        if path:
            section["path"] = local
    return parse_config(data, strict=False) if changed else config


def local_model(key: str, path: str) -> str:
    """Return the folder of a model that an extension knows by its name or its form, made where there is none yet; other
    paths as given.

    key: what names the model, for messages. Raises `ConfigError`, `InputError` and `UnavailableError`.
    """
    for row in rows("local_models"):
        path = row.load()(key, path)
    return path
