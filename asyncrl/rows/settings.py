"""What `[data]` says once known sets have filled in what it leaves open, and what follows from it for `[env]`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from asyncrl.config_sections import DataConfig, DataSource, Sources
from asyncrl.errors import ConfigError
from asyncrl.rows.known_sets import NONE, KnownSet, known_set, known_sets, set_of

DATASET = "dataset"
"""The environment that plays rows which no reader makes tasks of for another one."""
SETTINGS = "data"
"""Its setting with all that `[data]` says."""
TOKENIZER = "tokenizer"
"""Its setting with the model whose tokens `data.max_prompt_tokens` counts."""


def with_data(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe, as nested dictionaries, with what `[data]` implies.

    `env.name` may name a known set, and may be left out where there are rows. The environment `dataset` gets the
    settings of `[data]`. Wrong types are left to the configuration's own checks. Raises `ValueError`.
    """
    env, data = recipe.get("env", {}), recipe.get("data", {})
    if not isinstance(env, dict) or not isinstance(data, dict):
        return dict(recipe)
    env, data = dict(env), dict(data)
    if isinstance(env.get("name"), str) and env["name"] in known_sets():
        if data.get("set") not in (None, "", env["name"]):
            raise ValueError(f"data.set: must be left out for env.name={env['name']!r}, got {data['set']!r}")
        data["set"] = env.pop("name")
    if not any(data.get(key) for key in ("set", "train", "heldout")):
        if env.get("name") == DATASET:
            raise ValueError("data.train: missing; the environment 'dataset' plays the rows of [data]")
        return dict(recipe)
    try:
        settings = DataConfig.model_validate(data)
        known = known_set(set_name(settings))
    except (ValidationError, ConfigError) as error:
        if isinstance(error, ConfigError):
            raise ValueError(str(error)) from None
        return {**recipe, "env": {"name": DATASET} | env, "data": data}
    env.setdefault("name", known.env if known and known.env else DATASET)
    if env["name"] == DATASET:
        given = env.get("config", {})
        if isinstance(given, dict) and (own := set(given) - {SETTINGS, TOKENIZER}):
            raise ValueError(f"env.config.{min(own)}: [data] has the settings of env.name='dataset'")
        env["config"] = {SETTINGS: settings.model_dump(exclude_defaults=True)}
        if settings.max_prompt_tokens and isinstance(model := recipe.get("model"), dict):
            env["config"][TOKENIZER] = model.get("path", "")
    return {**recipe, "env": env, "data": data}


def settings_from(data: Mapping[str, Any]) -> DataConfig:
    """Return the settings that `with_data` has written for the environment. Raises `ConfigError`."""
    try:
        return DataConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"data.{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}"
        ) from None


def set_name(settings: DataConfig) -> str:
    """Return the name of the known set of the training rows, or of the held-out ones without any; "" for none."""
    if settings.set:
        return "" if settings.set == NONE else settings.set
    return set_of(settings.train) or set_of(settings.heldout)


def resolved(settings: DataConfig, source: DataSource | None = None) -> DataConfig:
    """Return settings with those of the known set where they leave something open.

    source: one of several, which may be of another set than the first. Raises `ConfigError`.
    """
    name = set_name(settings)
    if source is not None and not settings.set:
        name = set_of(source) or name
    known = known_set(name)
    return settings if known is None else _filled(settings, name, known)


def sources_of(settings: DataConfig, split: str) -> list[DataSource]:
    """Return where the rows of "train" or "heldout" are; none where nothing names them.

    Raises `ConfigError` for a known set without rows to train on.
    """
    given = settings.heldout if split == "heldout" else settings.train
    listed = given if isinstance(given, list) else [given]
    if found := [_source(one, split, settings) for one in listed if one != ""]:
        return found
    name = set_name(settings)
    known = known_set(name)
    if known is None:
        return []
    if split == "heldout" and not _of_the_hub(settings.train):
        # Rows of one's own that look like a known set's are not those of the hub.
        return []
    found_source = known.source(split)
    if split == "train" and found_source is None:
        why = "is for evaluation" if known.only else "has no table on the hub; name its files"
        raise ConfigError(f"data.train: missing; {name!r} {why}")
    return [found_source] if found_source else []


def _source(given: str | DataSource, split: str, settings: DataConfig) -> DataSource:
    source = DataSource(path=given) if isinstance(given, str) else given
    known = known_sets().get(source.path)
    if known is not None:
        found = known.source(split)
        if found is None:
            raise ConfigError(f"data.{split}: {source.path!r} has no rows for it; {known.about}")
        return found.model_copy(
            update={k: v for k in ("split", "revision", "weight") if (v := getattr(source, k))}
        )
    of_hub = not (source.split or Path(source.path).exists())
    if of_hub and (by_hub := known_set(set_of(source))) is not None and by_hub.path == source.path:
        chosen = by_hub.heldout if split == "heldout" else by_hub.train
        return source.model_copy(update={"split": chosen, "config": source.config or by_hub.config})
    return source


def _of_the_hub(train: Sources) -> bool:
    """Whether the training rows are those that the hub has of a known set."""
    if isinstance(train, list):
        return len(train) == 1 and _of_the_hub(train[0])
    path = train if isinstance(train, str) else train.path
    return not path or path in known_sets() or any(path == found.path for found in known_sets().values())


def _filled(settings: DataConfig, name: str, known: KnownSet) -> DataConfig:
    filled: dict[str, Any] = {
        key: getattr(known, key) for key in ("prompt", "answer", "reward") if not getattr(settings, key)
    }
    if settings.system is None and not settings.prompt:
        # A prompt of one's own says itself how to answer.
        filled["system"] = known.system
    return settings.model_copy(update={**filled, "set": name, "dedupe": settings.dedupe or known.dedupe})
