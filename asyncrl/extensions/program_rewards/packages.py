"""Packages that programs have inside their sandbox: NumPy, which the benchmarks' machines have, too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from asyncrl.sandbox.backends import backend_class, open_sandbox
from asyncrl.sandbox.base import BaseSandbox
from asyncrl.sandbox.protocol import Mount, SandboxSpec

FOLDER = "/opt/packages"
NAMES = ("numpy",)

_minor: dict[str, str] = {}
"""By backend the version of the interpreter inside."""


async def mounts(backend: str) -> tuple[Mount, ...]:
    """Return what to mount: this interpreter's NumPy, if the one inside has the same version of Python."""
    kind = backend_class(backend)
    if not (issubclass(kind, BaseSandbox) and kind.takes_mounts):
        return ()
    if backend not in _minor:
        async with await open_sandbox(backend, SandboxSpec()) as box:
            found = await box.exec(
                ["python3", "-S", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
            )
        _minor[backend] = found.text.strip()
    if _minor[backend] != f"{sys.version_info[0]}.{sys.version_info[1]}":
        return ()
    return tuple(Mount(str(folder), f"{FOLDER}/{folder.name}") for folder in _folders())


def environment(backend: str) -> dict[str, str]:
    """Return the variables with which programs find them."""
    return (
        {"PYTHONPATH": FOLDER, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if _minor.get(backend)
        else {}
    )


def _folders() -> list[Path]:
    found: list[Path] = []
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations)))
            # Its shared libraries lie beside it.
            found += [one for one in (folder, folder.with_name(f"{name}.libs")) if one.is_dir()]
    return found
