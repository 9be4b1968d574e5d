"""The model that reinforcement learning starts from."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.launch.models.base_model import cached_base_model


def start_model(config: Config) -> str:
    """Return the folder or name of the model that a run starts from: that of `model.path`, the tiny base model, or what
    an extension makes of the first, once.

    Raises `UnavailableError`.
    """
    if config.model.path == "sft":
        return str(cached_base_model(config))
    for row in rows("start_models"):
        if row.wanted(config):
            return str(row.load()(config))
    return config.model.path
