"""Reads task.toml as harbor writes it: what a task needs of its session, its tests, their own session, and its build.

A setting that would change what is asked or judged, and that is not followed, is refused by name: the task would be
another one. Where a task and the recipe both speak of hosts, a session reaches what both allow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asyncrl.envs.terminal.artifacts import Artifact, CollectHook, read_artifacts, read_hooks
from asyncrl.errors import ConfigError
from asyncrl.sandbox.protocol import MIB

MOST_STORAGE_BYTES = 4096 * MIB
"""Files of a session lie in memory."""
VERIFIER_S, BUILD_S = 60.0, 600.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([GMK])", re.IGNORECASE)
_MIB_EACH = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


@dataclass(frozen=True, slots=True)
class Network:
    """Which of the recipe's hosts a phase of the task may reach."""

    mode: str = "public"
    """"public" for all of them, "allowlist" for those of `allowed`, "no-network" for none."""
    allowed: tuple[str, ...] = ()
    """Names, with a leading `*.` for all below one."""

    def narrowed(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return which of these entries, `host` or `host:port`, may be reached."""
        if self.mode == "public":
            return tuple(hosts)
        return tuple(host for host in hosts if self._allows(host.partition(":")[0].lower()))

    def _allows(self, name: str) -> bool:
        return any(
            name.endswith(one[1:]) if one.startswith("*.") else name == one
            for one in (entry.lower() for entry in self.allowed)
        )


@dataclass(frozen=True, slots=True)
class TaskToml:
    """What is followed."""

    docker_image: str = ""
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the session's programs."""
    test_env: Mapping[str, str] = field(default_factory=dict)
    """Those of the tests, besides."""
    network: Network = Network()
    test_network: Network = Network()
    memory_bytes: int = 0
    """Of all that runs; 0 where the task does not say it."""
    storage_bytes: int = 0
    """Of all that is written, likewise."""
    build_timeout_s: float = BUILD_S
    said_timeout_s: float = 0.0
    """Of the tests where the task says it, else 0."""
    collect: tuple[CollectHook, ...] = ()
    """Commands that are run when the agent's programs have ended, before the tests."""
    artifacts: tuple[Artifact, ...] = ()
    """What of the agent's session comes into that of the tests, where they have their own."""
    verifier: TaskToml | None = None
    """The environment of the tests, where it is their own: `network` is theirs then."""

    @property
    def verifier_timeout_s(self) -> float:
        return self.said_timeout_s or VERIFIER_S


def read_task_toml(settings: Mapping[str, Any], path: Path) -> TaskToml:
    """Return what a file says. path: of the task, for messages. Raises `ConfigError` naming the key."""
    reader = _Reader(settings, path)
    reader.refuse_others()
    environment = reader.network("environment", Network())
    toml = TaskToml(
        docker_image=reader.text("environment", "docker_image"),
        workdir=reader.text("environment", "workdir"),
        env=reader.variables("environment"),
        test_env=reader.variables("verifier"),
        network=reader.network("agent", environment),
        test_network=reader.network("verifier", environment),
        memory_bytes=reader.size("environment", "memory"),
        storage_bytes=min(reader.size("environment", "storage"), MOST_STORAGE_BYTES),
        build_timeout_s=reader.seconds("environment", "build_timeout_sec") or BUILD_S,
        said_timeout_s=reader.seconds("verifier", "timeout_sec"),
        collect=reader.hooks(),
    )
    if not reader.separate():
        return toml
    return replace(toml, artifacts=reader.artifacts(), verifier=_own_environment(reader, toml))


def _own_environment(reader: _Reader, toml: TaskToml) -> TaskToml:
    """Return the environment of tests that are not run in the agent's: the one they name, or another like the
    agent's."""
    toml = replace(toml, collect=())
    if not reader.named("verifier.environment"):
        return replace(toml, network=toml.test_network, docker_image="")
    network = reader.network("verifier", reader.network("verifier.environment", Network()))
    return replace(
        toml,
        docker_image=reader.text("verifier.environment", "docker_image"),
        workdir=reader.text("verifier.environment", "workdir"),
        env=reader.variables("verifier.environment"),
        network=network,
        test_network=network,
        memory_bytes=reader.size("verifier.environment", "memory"),
        storage_bytes=min(reader.size("verifier.environment", "storage"), MOST_STORAGE_BYTES),
    )


class _Reader:
    def __init__(self, settings: Mapping[str, Any], path: Path) -> None:
        self.settings, self.path = settings, path

    def _section(self, name: str) -> Mapping[str, Any]:
        """Return a table, such as `verifier.environment`."""
        found: Any = self.settings
        for part in name.split("."):
            found = found.get(part) or {}
            if not isinstance(found, Mapping):
                raise self._wrong(name, "must be a table", found)
        return found

    def _wrong(self, key: str, must: str, got: object) -> ConfigError:
        return ConfigError(f"terminal task {self.path}: task.toml: {key}: {must}, got {str(got)[:80]!r}")

    def named(self, section: str) -> bool:
        """Whether a table stands there, be it empty."""
        outer, _, name = section.rpartition(".")
        return self._section(outer).get(name) is not None

    def refuse_others(self) -> None:
        """Raise for what makes another task of it."""
        asked = {"steps": self.settings.get("steps")}
        for section in ("environment", "verifier.environment"):
            said = self._section(section)
            asked[f"{section}.os"] = str(said.get("os") or "linux").lower() != "linux"
            asked |= {
                f"{section}.{key}": said.get(key) for key in ("gpus", "tpu", "mcp_servers", "healthcheck")
            }
        for key, found in asked.items():
            if found:
                raise ConfigError(
                    f"terminal task {self.path}: task.toml: {key} is not followed: the task would be another one; "
                    "leave it out of env.config.folder"
                )

    def separate(self) -> bool:
        """Whether the tests have an environment of their own."""
        own = self.named("verifier.environment")
        mode = self._section("verifier").get("environment_mode")
        if mode not in (None, "shared", "separate"):
            raise self._wrong("verifier.environment_mode", "must be shared or separate", mode)
        if mode == "shared" and own:
            raise self._wrong(
                "verifier.environment_mode", "must be separate where verifier.environment is given", mode
            )
        return own or mode == "separate"

    def artifacts(self) -> tuple[Artifact, ...]:
        try:
            return read_artifacts(self.settings.get("artifacts") or [])
        except ValueError as error:
            raise ConfigError(f"terminal task {self.path}: task.toml: artifacts: {error}") from error

    def hooks(self) -> tuple[CollectHook, ...]:
        try:
            return read_hooks(self._section("verifier").get("collect") or [])
        except ValueError as error:
            raise ConfigError(f"terminal task {self.path}: task.toml: verifier.collect: {error}") from error

    def text(self, section: str, key: str) -> str:
        found = self._section(section).get(key) or ""
        if not isinstance(found, str):
            raise self._wrong(f"{section}.{key}", "must be a text", found)
        return found

    def seconds(self, section: str, key: str) -> float:
        found = self._section(section).get(key) or 0.0
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < 1e6:
            raise self._wrong(f"{section}.{key}", "must be seconds", found)
        return float(found)

    def variables(self, section: str) -> dict[str, str]:
        found = self._section(section).get("env") or {}
        if not isinstance(found, Mapping) or not all(isinstance(value, str) for value in found.values()):
            raise self._wrong(f"{section}.env", "must be a table of texts", found)
        for name, value in found.items():
            if "${" in value:
                raise self._wrong(
                    f"{section}.env.{name}", "must be the value itself; nothing of this machine enters", value
                )
        return dict(found)

    def size(self, section: str, name: str) -> int:
        """Return bytes, of `name`_mb in MiB or of `name` in the form "2G"; 0 for neither."""
        environment = self._section(section)
        found = environment.get(f"{name}_mb") or 0
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self._wrong(f"{section}.{name}_mb", "must be a whole number", found)
        older = environment.get(name)
        if not older or found:
            return found * MIB
        size = _SIZE.fullmatch(str(older).strip())
        if size is None:
            raise self._wrong(f"{section}.{name}", 'must be a size such as "2G"', older)
        return int(float(size[1]) * _MIB_EACH[size[2].upper()] * MIB)

    def network(self, section: str, else_: Network) -> Network:
        said = self._section(section)
        if (
            section.endswith("environment")
            and said.get("allow_internet") is False
            and not said.get("network_mode")
        ):
            return Network("no-network")
        mode = said.get("network_mode")
        if mode is None:
            return else_
        if mode not in ("public", "allowlist", "no-network"):
            raise self._wrong(f"{section}.network_mode", "must be public, allowlist or no-network", mode)
        return Network(mode, tuple(map(str, said.get("allowed_hosts") or ())))
