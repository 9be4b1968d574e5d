"""Reads task.toml as harbor writes it: what a task needs of its session, its tests, their own session, and its build.

A setting that would change what is asked or judged, and that is not followed, is refused by name: the task would be
another one. Where a task and the recipe both speak of hosts, a session reaches what both allow.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from asyncrl.envs.terminal.artifacts import Artifact, CollectHook, read_artifacts, read_hooks
from asyncrl.errors import ConfigError
from asyncrl.sandbox.protocol import MIB

MOST_STORAGE_BYTES = 4096 * MIB
"""Files of a session lie in memory."""
VERIFIER_S, BUILD_S = 60.0, 600.0
STEP_KEYS: Mapping[str, tuple[str, ...]] = {
    "": ("name", "agent", "verifier", "min_reward", "artifacts"),
    "agent": ("timeout_sec", "user"),
    "verifier": ("timeout_sec", "env", "user", "environment_mode", "collect"),
}
"""What may stand in an entry of `steps`, and in its tables."""
_STEP_NAME = re.compile(r'[^<>:"/\\|?*\x00-\x1f\x7f]{1,255}')
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


@dataclass(frozen=True, slots=True)
class StepToml:
    """What is followed of an entry of `steps`."""

    name: str
    toml: TaskToml
    """The task's, with what the step says of its tests."""
    min_reward: float | None = None
    """With less the steps after it are not played."""


def read_steps(settings: Mapping[str, Any], path: Path) -> tuple[StepToml, ...]:
    """Return the steps of a file in their order, none for a task without. Raises as `read_task_toml` does."""
    reader = _Reader(settings, path)
    found = []
    for step in reader.steps():
        key = f"steps.{step['name']}"
        reader.refuse_others_of_step(step, key)
        verifier = {**(settings.get("verifier") or {}), **(step.get("verifier") or {})}
        if (step.get("verifier") or {}).get("environment_mode") == "shared":
            verifier.pop("environment", None)
        for name, empty in (("env", {}), ("collect", [])):
            verifier[name] = _joined(settings.get("verifier") or {}, step.get("verifier") or {}, name, empty)
        merged = {**settings, "verifier": verifier, "artifacts": _joined(settings, step, "artifacts", [])}
        found.append(StepToml(step["name"], read_task_toml(merged, path), reader.least(step, key)))
    return tuple(found)


def read_strategy(settings: Mapping[str, Any], path: Path) -> Literal["mean", "final"]:
    """Return how the rewards of steps make that of the task."""
    found = settings.get("multi_step_reward_strategy") or "mean"
    if found == "mean":
        return "mean"
    if found == "final":
        return "final"
    raise _Reader(settings, path).wrong("multi_step_reward_strategy", "must be mean or final", found)


def _joined(task: Mapping[str, Any], step: Mapping[str, Any], name: str, empty: Any) -> Any:
    """Return what a task and one of its steps say together; what is no such list or table, for its reader to refuse."""
    for said in (task, step):
        if not isinstance(said.get(name) or empty, type(empty)):
            return said[name]
    first, second = task.get(name) or empty, step.get(name) or empty
    return {**first, **second} if isinstance(empty, dict) else [*first, *second]


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
                raise self.wrong(name, "must be a table", found)
        return found

    def wrong(self, key: str, must: str, got: object) -> ConfigError:
        return ConfigError(f"terminal task {self.path}: task.toml: {key}: {must}, got {str(got)[:80]!r}")

    def named(self, section: str) -> bool:
        """Whether a table stands there, be it empty."""
        outer, _, name = section.rpartition(".")
        return self._section(outer).get(name) is not None

    def refuse_others(self) -> None:
        """Raise for what makes another task of it."""
        asked: dict[str, Any] = {}
        for section in ("environment", "verifier.environment"):
            said = self._section(section)
            asked[f"{section}.os"] = str(said.get("os") or "linux").lower() != "linux"
            asked |= {
                f"{section}.{key}": said.get(key) for key in ("gpus", "tpu", "mcp_servers", "healthcheck")
            }
        self._refuse(asked)

    def _refuse(self, asked: Mapping[str, Any]) -> None:
        for key, found in asked.items():
            if found:
                raise ConfigError(
                    f"terminal task {self.path}: task.toml: {key} is not followed: the task would be another one; "
                    "leave it out of env.config.folder"
                )

    def steps(self) -> list[Mapping[str, Any]]:
        """Return the entries, each with a name of its own that is a folder's."""
        found = self.settings.get("steps") or []
        if not isinstance(found, list) or not all(isinstance(step, Mapping) for step in found):
            raise self.wrong("steps", "must be a list of tables", found)
        known: set[str] = set()
        for step in found:
            name = step.get("name")
            if not isinstance(name, str) or not _STEP_NAME.fullmatch(name) or name[-1] in ". ":
                raise self.wrong("steps.name", "must be the name of a folder below steps/", name)
            folded = unicodedata.normalize("NFC", name).casefold()
            if folded in known:
                raise self.wrong("steps.name", "must be another one for each step", name)
            known.add(folded)
        return found

    def refuse_others_of_step(self, step: Mapping[str, Any], key: str) -> None:
        """Raise for what makes another step of it."""
        for table, names in STEP_KEYS.items():
            said: Any = step.get(table) or {} if table else step
            if not isinstance(said, Mapping):
                raise self.wrong(f"{key}.{table}", "must be a table", said)
            others = {name: found for name, found in said.items() if name not in names}
            self._refuse({".".join(filter(None, (key, table, name))): others[name] for name in others})

    def least(self, step: Mapping[str, Any], key: str) -> float | None:
        """Return the reward with less than which no step follows. Rewards are from 0 to 1 here."""
        found = step.get("min_reward")
        if found is None:
            return None
        least = found.get("reward") if isinstance(found, Mapping) and len(found) == 1 else found
        if not isinstance(least, int | float) or isinstance(least, bool) or not 0 <= least <= 1:
            raise self.wrong(
                f"{key}.min_reward",
                "must be a number from 0 to 1, or {reward = NUMBER}; no other reward is read",
                found,
            )
        return float(least)

    def separate(self) -> bool:
        """Whether the tests have an environment of their own."""
        own = self.named("verifier.environment")
        mode = self._section("verifier").get("environment_mode")
        if mode not in (None, "shared", "separate"):
            raise self.wrong("verifier.environment_mode", "must be shared or separate", mode)
        if mode == "shared" and own:
            raise self.wrong(
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
            raise self.wrong(f"{section}.{key}", "must be a text", found)
        return found

    def seconds(self, section: str, key: str) -> float:
        found = self._section(section).get(key) or 0.0
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < 1e6:
            raise self.wrong(f"{section}.{key}", "must be seconds", found)
        return float(found)

    def variables(self, section: str) -> dict[str, str]:
        found = self._section(section).get("env") or {}
        if not isinstance(found, Mapping) or not all(isinstance(value, str) for value in found.values()):
            raise self.wrong(f"{section}.env", "must be a table of texts", found)
        for name, value in found.items():
            if "${" in value:
                raise self.wrong(
                    f"{section}.env.{name}", "must be the value itself; nothing of this machine enters", value
                )
        return dict(found)

    def size(self, section: str, name: str) -> int:
        """Return bytes, of `name`_mb in MiB or of `name` in the form "2G"; 0 for neither."""
        environment = self._section(section)
        found = environment.get(f"{name}_mb") or 0
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self.wrong(f"{section}.{name}_mb", "must be a whole number", found)
        older = environment.get(name)
        if not older or found:
            return found * MIB
        size = _SIZE.fullmatch(str(older).strip())
        if size is None:
            raise self.wrong(f"{section}.{name}", 'must be a size such as "2G"', older)
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
            raise self.wrong(f"{section}.network_mode", "must be public, allowlist or no-network", mode)
        return Network(mode, tuple(map(str, said.get("allowed_hosts") or ())))
