"""The project's scripts as modules, for tests of their parts."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load_script(name: str) -> ModuleType:
    """Return `scripts/NAME.py` as a module of its own; as when it is run, it finds those of its folder."""
    path = SCRIPTS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{path.stem}_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with _beside(path):
        spec.loader.exec_module(module)
    return module


def help_of(script: Path) -> str:
    """Return what `python SCRIPT --help` prints. It runs here, where what it imports has been imported already."""
    said = io.StringIO()
    with (
        _beside(script),
        patch.object(sys, "argv", [str(script), "--help"]),
        contextlib.redirect_stdout(said),
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_path(str(script), run_name="__main__")
    assert not end.value.code, said.getvalue()
    return said.getvalue()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[None]:
    """Find the modules of a script's folder, as Python does when it runs it."""
    sys.path.insert(0, str(path.parent))
    try:
        yield
    finally:
        sys.path.remove(str(path.parent))
