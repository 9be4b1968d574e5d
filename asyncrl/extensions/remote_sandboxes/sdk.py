"""Loading a provider's own library, which is an optional extra."""

from __future__ import annotations

import importlib
from typing import Any

from asyncrl.errors import ConfigError


def load(module: str, backend: str) -> Any:
    """Import the module. Raises `ConfigError` saying what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"sandbox backend {backend!r} needs 'pip install {module}': {error}") from error
