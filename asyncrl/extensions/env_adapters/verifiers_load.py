"""Loads verifiers environments, once per process, without letting the library take over the process."""

from __future__ import annotations

import functools
import json
import signal
import threading
from types import SimpleNamespace
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.requirements import need
from asyncrl.import_path import load_object

EXTRA = "verifiers"
_lock = threading.Lock()


def load_environment(id: str, arguments: dict[str, Any]) -> Any:
    """Return what the module of `id` makes by `load_environment(**arguments)`. Raises `ConfigError`.

    `id` may also be the import path of such a function.
    """
    with _lock:
        return _load(id, json.dumps(arguments, sort_keys=True))


@functools.cache
def _load(id: str, arguments: str) -> Any:
    library = need("verifiers", EXTRA)
    # It sets signal handlers for every environment: that fails outside the main thread, and in it a service would no
    # longer drain.
    inert = SimpleNamespace(**vars(signal))
    inert.signal = lambda number, handler: None
    vars(need("verifiers.envs.environment", EXTRA))["signal"] = inert
    need("datasets", EXTRA).disable_progress_bars()
    try:
        own = load_object("id", id) if ":" in id else functools.partial(library.load_environment, id)
        made = own(**json.loads(arguments))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"id: verifiers environment {id!r} cannot be loaded: {error}") from error
    if not isinstance(made, library.MultiTurnEnv):
        raise ConfigError(
            f"id: {id!r} is a {type(made).__name__}; only MultiTurnEnv and its kinds can be stepped"
        )
    if made.message_type != "chat":
        raise ConfigError(f"id: {id!r} uses {made.message_type!r} messages; only chat is supported")
    if grouped := [f.__name__ for f in made.rubric._get_reward_funcs() if made.rubric._is_group_func(f)]:
        raise ConfigError(f"id: {id!r} scores whole groups ({', '.join(grouped)}), which is not supported")
    return made


def rows(made: Any, split: str) -> list[int]:
    """Return the dataset rows of a split; with only one dataset, even rows are train and odd ones held out."""
    made.build_eval_dataset()
    if made.eval_dataset is None:
        return list(range(1 if split == "heldout" else 0, len(made.get_dataset()), 2))
    if split == "heldout":
        return list(range(len(made.eval_dataset)))
    made.build_dataset()
    if made.dataset is None:
        raise ConfigError(f"id: {made.env_id!r} has no training dataset")
    return list(range(len(made.dataset)))


def row(made: Any, split: str, index: int) -> dict[str, Any]:
    """Return one row in the library's form. Raises `ConfigError` for an index outside the dataset."""
    made.build_eval_dataset()
    held_out = split == "heldout" and made.eval_dataset is not None
    dataset = made.eval_dataset if held_out else made.get_dataset()
    if not 0 <= index < len(dataset):
        raise ConfigError(f"task: row {index} is not in the {split} dataset of {len(dataset)} rows")
    return dict(dataset[index])
