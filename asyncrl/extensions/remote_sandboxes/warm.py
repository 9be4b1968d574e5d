"""Containers that are started before a session asks for them: starting one takes an engine longer than a short program.

A session takes one that was made of its own configuration, and no session takes it again. Others are then started in
the background. They are the process's: what waits when it ends is removed by it, and by the next process on this
machine where it was killed (`owner`).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import http.client
import json
import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar
from urllib.parse import quote

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.remote_sandboxes.docker_api import VERSION, DockerApi

VARIABLE = "ASYNCRL_SANDBOX_WARM"
MOST_EACH = 64
MOST = 128
"""That wait in one process, for all configurations together; those of the one that was not used longest go first."""
LABEL = "asyncrl.owner"
EXIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    user: str
    """`UID:GID` of its programs."""


def wanted() -> int:
    """Return how many containers wait for each configuration. Raises `ConfigError`."""
    text = os.environ.get(VARIABLE, "0")
    if not text.isdigit() or int(text) > MOST_EACH:
        raise ConfigError(f"{VARIABLE}: must be a whole number from 0 to {MOST_EACH}, got {text!r}")
    return int(text)


def new_name() -> str:
    """Return a container's name. It is known before the engine is asked, so that what is asked for can be removed
    though the answer was not waited for."""
    return f"asyncrl-{secrets.token_hex(8)}"


# -- whose a container is ---------------------------------------------------------------------------------------------


@cache
def _place() -> str:
    """Return within what a process id means one process: this start of this machine, and the process namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; "" where it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def owner() -> str:
    """Return what tells this process from every other, for a container's label; "" where that is not known."""
    return f"{_place()}/{os.getpid()}/{_started(os.getpid())}" if _place() else ""


def is_deserted(label: str) -> bool:
    """Return whether the process that `owner` has named so has ended. False where this process cannot know."""
    place, _, process = label.rpartition("/")
    place, _, pid = place.rpartition("/")
    return bool(process) and place == _place() and pid.isdigit() and _started(int(pid)) != process


_swept: set[str] = set()


async def remove_deserted(api: DockerApi, path: str) -> None:
    """Remove the containers of processes that were killed; once for each engine's socket."""
    if path in _swept:
        return
    _swept.add(path)
    filters = quote(json.dumps({"label": [LABEL]}))
    for found in await api.call("GET", f"/containers/json?all=true&filters={filters}") or ():
        if is_deserted((found.get("Labels") or {}).get(LABEL, "")):
            await remove(api, found["Id"])


async def remove(api: DockerApi, name: str) -> None:
    """Remove a container, however far it has come. Raises `InfrastructureError`."""
    try:
        await api.call("DELETE", f"/containers/{name}?force=true&v=true")
    except InfrastructureError as error:
        # Gone, or already being removed, because it removes itself.
        if " 404 " not in str(error) and " 409 " not in str(error):
            raise


# -- the pool ---------------------------------------------------------------------------------------------------------


class WarmContainers:
    """Those of this process that wait for a session, by the engine's socket and their configuration."""

    _shared: ClassVar[WarmContainers | None] = None

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, str], list[Container]] = OrderedDict()
        self._ours: dict[str, str] = {}
        """Names of all that this has begun to start and no session has taken, with their engine's socket."""
        self._leaving: list[tuple[str, str]] = []
        """Pairs of socket and name, of what is to be removed."""
        self._filling: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._pid = os.getpid()

    @classmethod
    def shared(cls) -> WarmContainers:
        if cls._shared is None or cls._shared._pid != os.getpid():
            cls._shared = cls()
            atexit.register(cls._shared.close)
        return cls._shared

    async def take(self, api: DockerApi, path: str, configuration: dict[str, Any]) -> Container | None:
        """Return a container that runs, which is the caller's to remove; None where none waits."""
        key = _key(path, configuration)
        waiting = self._waiting.get(key, [])
        while waiting:
            found, runs = waiting.pop(0), False
            try:
                with contextlib.suppress(InfrastructureError):
                    runs = (await api.call("GET", f"/containers/{found.name}/json"))["State"]["Running"]
            finally:
                # Also where whoever asks is cancelled.
                self._leaving += [] if runs else [(path, found.name)]
            if runs:
                del self._ours[found.name]
                return found
        return None

    def fill(self, path: str, configuration: dict[str, Any], count: int, user: Callable[[], str]) -> None:
        """Have `count` containers wait for later sessions. Returns at once; called in an event loop.

        user: gives the `User` of each.
        """
        key = _key(path, configuration)
        self._waiting.setdefault(key, [])
        self._waiting.move_to_end(key)
        loop = asyncio.get_running_loop()
        known = (*key, id(loop))
        if known not in self._filling:
            task = loop.create_task(self._fill(path, key, configuration, count, user))
            self._filling[known] = task
            task.add_done_callback(lambda _: self._filling.pop(known, None))

    async def _fill(
        self,
        path: str,
        key: tuple[str, str],
        configuration: dict[str, Any],
        count: int,
        user: Callable[[], str],
    ) -> None:
        api = DockerApi(path)
        # Where the engine fails, the next session starts its own container and says why that fails.
        with contextlib.suppress(InfrastructureError):
            try:
                self._make_room(count)
                await self._remove_leaving(api, path)
                while key in self._waiting and len(self._waiting[key]) < count:
                    found = await self._start(api, path, {**configuration, "User": user()})
                    if key in self._waiting:
                        self._waiting[key].append(found)
                    else:
                        self._leaving.append((path, found.name))
            finally:
                await api.close()

    async def _start(self, api: DockerApi, path: str, configuration: dict[str, Any]) -> Container:
        name = new_name()
        self._ours[name] = path
        try:
            await start(api, name, configuration)
        except BaseException:
            self._leaving.append((path, name))
            raise
        return Container(name, configuration["User"])

    def _make_room(self, count: int) -> None:
        while len(self._waiting) > 1 and sum(map(len, self._waiting.values())) + count > MOST:
            (path, _), found = self._waiting.popitem(last=False)
            self._leaving += [(path, container.name) for container in found]

    async def _remove_leaving(self, api: DockerApi, path: str) -> None:
        names = [name for socket_path, name in self._leaving if socket_path == path]
        self._leaving = [entry for entry in self._leaving if entry[0] != path]
        for name in names:
            await remove(api, name)
            # What could not be removed is tried again at the process's end.
            self._ours.pop(name, None)

    def close(self) -> None:
        """Remove all that no session has taken. Called at the process's end, when no event loop runs any more."""
        if os.getpid() != self._pid:
            return
        ours, self._ours, self._leaving = self._ours, {}, []
        self._waiting.clear()
        for name, path in ours.items():
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = _Connection(path)
                connection.request("DELETE", f"{VERSION}/containers/{name}?force=true&v=true")
                connection.getresponse().read()
                connection.close()


async def start(api: DockerApi, name: str, configuration: dict[str, Any]) -> None:
    """Make a container and start it. Raises `InfrastructureError`."""
    await api.call("POST", f"/containers/create?name={name}", configuration)
    await api.call("POST", f"/containers/{name}/start")


def _key(path: str, configuration: dict[str, Any]) -> tuple[str, str]:
    """Return what equal containers have in common; each has a user of its own."""
    return path, json.dumps({**configuration, "User": ""}, sort_keys=True)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=EXIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(EXIT_S)
        self.sock.connect(self._path)
