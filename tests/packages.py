"""Large packages that few tests use: every process collects all tests and would import what their files name."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class ImportedWhenUsed(ModuleType):
    """Stands for a module, which is imported when something public of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # pytest looks for marks of its own.
        return getattr(importlib.import_module(self.__name__), name)


def needs(*packages: str) -> None:
    """Skip the tests of a file where one of `packages` is not installed. None is imported."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
