"""The image of a task that has one of its own: what it starts from, when it is built, what sessions get."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from asyncrl.agent_time import own
from asyncrl.envs.terminal.folder import TaskFolder
from asyncrl.errors import ConfigError
from asyncrl.extensions.sandbox_images.engine import ENGINES, check_engine
from asyncrl.extensions.sandbox_images.jail import BuildLimits
from asyncrl.extensions.sandbox_images.store import Image, image
from asyncrl.sandbox.allow_list import parse
from asyncrl.sandbox.protocol import Limits, Sandbox, SandboxSpec

RESET_S = 45.0
"""How long `reset` waits for an image. The first command waits for what is left of it."""
ANY = "*"
"""Stands for every image name in `bases`."""
BACKENDS = ("auto", "bubblewrap")


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Keys of `env.config`."""

    bases: Mapping[str, str]
    """Image name after FROM, or `ANY` -> folder of an unpacked root file system, "host", or one of `ENGINES`."""
    build_hosts: tuple[str, ...]
    keep_git_history: bool
    build_timeout_s: float
    """0 for what the task says, or else ten minutes."""

    def standing_for(self, image: str) -> str:
        """Return what stands for an image's name; "" for nothing."""
        return self.bases.get(image) or self.bases.get(ANY, "")

    def engine_builds(self, image: str) -> bool:
        """Whether a container engine fetches an image, and builds what starts from it."""
        return self.standing_for(image) in ENGINES


class TaskImage:
    """Builds a task's image when it is asked for; nothing where the task needs none."""

    def __init__(self, work: TaskFolder, settings: BuildSettings, sandbox: str) -> None:
        """Raises `ConfigError` where no base is known for the task, or no such backend can see an image."""
        self._work, self._settings = work, settings
        self._task: asyncio.Task[Image] | None = None
        self._base = ""
        recipe = work.recipe
        if recipe is not None:
            if sandbox not in BACKENDS:
                raise ConfigError(
                    f"env.config.sandbox: RUN lines need one of {', '.join(BACKENDS)}, got {sandbox!r}"
                )
            self._base = settings.standing_for(recipe.base)
            if not self._base:
                raise ConfigError(
                    f"terminal task {work.name}: its Dockerfile has RUN lines; say in env.config.bases what "
                    f'stands for {recipe.base!r}: "podman" or "docker" to have that engine build the image, a folder '
                    'with its unpacked root file system, or "host" for this machine\'s programs. With ignore_run = '
                    "true its RUN lines are skipped"
                )
            if self._base in ENGINES:
                if not recipe.engine_text:
                    raise ConfigError(
                        f"terminal task {work.name}: env.config.bases: {self._base} has no image to fetch for "
                        f'{recipe.base!r}; name a folder with an unpacked root file system, or "host"'
                    )
                check_engine(self._base, "env.config.bases")

    @property
    def needed(self) -> bool:
        return self._work.recipe is not None

    def start(self) -> None:
        """Begin to build. Called in an event loop."""
        if self._task is None and self._work.recipe is not None:
            made = image(self._work.recipe, self._base, self.limits(), self._settings.keep_git_history)
            self._task = asyncio.create_task(made)

    async def begin(self) -> None:
        """Begin to build, and wait for `RESET_S` at most. Raises `InfrastructureError` with the reason of a failure."""
        self.start()
        if self._task is not None:
            done, _ = await asyncio.wait((self._task,), timeout=RESET_S)
            for task in done:
                task.result()

    def limits(self) -> BuildLimits:
        """Return what is allowed of RUN lines."""
        timeout_s = self._settings.build_timeout_s or self._work.toml.build_timeout_s
        return BuildLimits(timeout_s, allow_hosts=self._settings.build_hosts)

    async def built(self) -> Image:
        """Return the image, which the task must have. Raises as `begin` does."""
        self.start()
        assert self._task is not None
        with own():
            return await asyncio.shield(self._task)

    async def spec(self, plain: SandboxSpec) -> SandboxSpec:
        """Return the spec of a session with the task's image, which it may have already. Raises as `begin` does."""
        self.start()
        if self._task is None or plain.root is not None:
            return plain
        built = await self.built()
        limits = plain.limits or Limits()
        room = replace(limits, disk_bytes=limits.disk_bytes + 2 * built.work.stat().st_size)
        return replace(plain, root=built.root, env={**dict(built.env), **plain.env}, limits=room)

    async def fill(self, box: Sandbox) -> str:
        """Put the image's work folder into a session; return what went wrong, "" for nothing."""
        if self._task is None:
            return ""
        data = await asyncio.to_thread((await self._task).work.read_bytes)
        with own():
            unpacked = await box.exec(["tar", "-xpf", "-", "--no-same-owner"], stdin=data, timeout_s=RESET_S)
        return "" if unpacked.ok else unpacked.stderr.decode("utf-8", "replace")[-500:] or "too slow"

    async def packed(self) -> bytes:
        """Return the work folder's files as a tar archive; b"" where there is no image."""
        self.start()
        return b"" if self._task is None else await asyncio.to_thread((await self._task).work.read_bytes)

    def leave(self) -> None:
        """Nobody waits any more. The build itself goes on for others."""
        if self._task is not None and not self._task.done():
            self._task.cancel()


def build_settings(
    bases: Mapping[str, str] | None,
    build_hosts: Sequence[str],
    keep_git_history: bool,
    build_timeout_s: float,
) -> BuildSettings:
    """Check keys of `env.config`. Raises `ValueError` naming the key."""
    bases = dict(bases or {})
    if not all(isinstance(value, str) and value for value in bases.values()):
        raise ValueError(
            f'bases: must be folders, "host", "podman" or "docker", by image name, got {bases!r}'
        )
    if not 0 <= build_timeout_s <= 86_400:
        raise ValueError(f"build_timeout_s: must be from 0 to 86400, got {build_timeout_s}")
    return BuildSettings(bases, hosts("build_hosts", build_hosts), keep_git_history, build_timeout_s)


def hosts(key: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return a list of hosts as a sandbox takes them. Raises `ValueError` naming the key of `env.config`."""
    if isinstance(given, str) or not all(isinstance(host, str) for host in given):
        raise ValueError(f"{key}: must be a list of hosts, got {given!r}")
    try:
        parse(tuple(given))
    except ConfigError as error:
        raise ValueError(f"{key}: {error}") from error
    return tuple(given)
