"""What supervised training asks of a model and its rows before anything starts. Loads no torch."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.config_sections import SCRIPTED
from asyncrl.env.config_check import check_settings
from asyncrl.env.protocol import Env
from asyncrl.env.registry import load_env
from asyncrl.errors import ConfigError
from asyncrl.extensions.supervised.sources import learns_from_rows, open_rows, run_folder
from asyncrl.launch.checks.check import check_model


def check_start(config: Config, alone: bool) -> None:
    """Check the supervised start of a run, wherever its processes are. Raises as `check_supervised`."""
    check_supervised(config)


def check_supervised(config: Config) -> None:
    """Check the model and rows of a supervised training, each row once. Raises `ConfigError` and `InputError`."""
    check_model("model.path", config.model.path, config)
    if learns_from_rows(config):
        for rows in open_rows(config):
            if rows is not None:
                rows.check()
    elif run_folder(config) is None:
        check_settings(config.env.name, config.env.config)
        if load_env(config.env.name).oracle is Env.oracle:
            raise ConfigError(
                f"sft.data: {SCRIPTED!r} are episodes of a scripted expert, and {config.env.name!r} has no oracle"
            )
