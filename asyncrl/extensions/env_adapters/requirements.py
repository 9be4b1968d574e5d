"""What an adapter needs before it can be used, and the message that says so."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import ClassVar

from asyncrl.env.protocol import Env
from asyncrl.errors import ConfigError


class AdapterEnv(Env):
    """Base of the adapters: an environment of another library or another server.

    `library` is the module it imports and `extra` the asyncrl extra that installs it, both empty where none is
    needed; `required` are the settings without which it cannot start.
    """

    library: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    required: ClassVar[tuple[str, ...]] = ()
    provides = frozenset({"components"})
    oracle_optional: ClassVar[bool] = True
    """`asyncrl env check` accepts a missing oracle."""

    @classmethod
    def load(cls, module: str = "") -> ModuleType:
        """Import the library, or another module of it. Raises `ConfigError` naming the extra to install."""
        return need(module or cls.library, cls.extra)

    @classmethod
    def missing(cls) -> str:
        """Return what prevents the environment from starting without settings, or an empty text."""
        if cls.library and importlib.util.find_spec(cls.library) is None:
            return f"pip install 'asyncrl[{cls.extra}]'"
        return f"settings: {', '.join(cls.required)}" if cls.required else ""


def need(module: str, extra: str) -> ModuleType:
    """Import a module of an optional library. Raises `ConfigError` naming the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"module {module!r} cannot be imported ({error}); install it with: pip install 'asyncrl[{extra}]'"
        ) from error
