"""A harness: the file that says how an agent program is installed, started and told its model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from asyncrl.errors import ConfigError
from asyncrl.sandbox.protocol import Limits
from asyncrl.textfile import read_toml

SETTING = "env.config.harness"
_PLACE = re.compile(r"\{([a-z_]+)\}")
PROMPT = (
    "{prompt}\n\nThe files are in {workdir}. You have {timeout_s} seconds; what stands there then is judged."
)
Version = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+-]*$")]
Package = Annotated[
    str, StringConstraints(pattern=r"^(@[a-z0-9._-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?$")
]


class Program(BaseModel):
    """Where the program comes from: a package of a registry in one version, or a path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    npm: Package | None = None
    pip: Package | None = None
    path: str | None = None
    """A file or folder, relative to the harness's file."""
    version: Version | None = None
    """The version of the package."""
    python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]+$")] | None = None
    """Python that a package of pip runs on, such as 3.12; None for asyncrl's own."""
    packages: tuple[str, ...] = ()
    """Further packages with their versions, as the registry's client takes them, such as `litellm==1.80.0`."""

    @model_validator(mode="after")
    def _one(self) -> Program:
        given = [n for n in ("npm", "pip", "path") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"program: give one of npm, pip and path, got {', '.join(given) or 'none'}")
        if given != ["path"] and self.version is None:
            raise ValueError(
                f'program.version: missing; a package is pinned to one, such as {given[0]} = ..., version = "1.0"'
            )
        return self


class Headers(BaseModel):
    """Headers in which the program says which of its conversations asks; see `gateway.client_headers`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    thread: str = ""
    """Its own id of the conversation."""
    caller: str = ""
    """That of the conversation that started this one, which makes it a sub-agent's."""
    agent: str = ""
    """The sub-agent's name."""


class Harness(BaseModel):
    """What a harness's file says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = Field(min_length=1)
    """Program and arguments, run in the task's folder. `{program}` is the installed package's or path's place."""
    program: Program | None = None
    """None where the sandbox has all it needs."""
    needs: tuple[str, ...] = ()
    """Programs that it starts and does not bring, which a sandbox shows as they are on this machine."""
    about: str = ""
    prompt: str = PROMPT
    """What the agent is told; `{prompt}` is the task's instruction."""
    stdin: str = ""
    """What it reads on standard input."""
    environment: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """Files of its home, by their path below it."""
    git: bool = False
    """Make the task's folder a repository with one commit, unless it is one; that repository is not judged."""
    headers: Headers = Headers()
    housekeeping: tuple[str, ...] = ()
    """Texts that only conversations of housekeeping have in their first messages, such as those that invent a title:
    these are recorded and not trained. Conversations without tools beside others with tools are so anyway."""
    limits: Mapping[str, float] = {}
    """The limits of the sandbox, by the names of `asyncrl.sandbox.protocol.Limits`."""

    def sandbox_limits(self, timeout_s: float) -> Limits:
        """Return the limits of its sandbox."""
        given = LIMITS | dict(self.limits)
        return Limits(wall_s=timeout_s, **{name: int(value) for name, value in given.items()})


LIMITS: dict[str, float] = {
    "cpu_s": 24 * 3600,
    "memory_bytes": 4 * 2**30,
    "address_space_bytes": 0,
    "processes": 512,
    "open_files": 4096,
    "file_bytes": 512 * 2**20,
    "disk_bytes": 1024 * 2**20,
}
"""What Node and Python agents need, which start a runtime of many threads and open all its files."""


def packaged() -> list[str]:
    """Return the names of the harnesses that come with asyncrl."""
    folder = resources.files(__package__).joinpath("packaged")
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def harness_path(name: str) -> Path:
    """Return the file of a harness: a packaged one by name, or a path. Raises `ConfigError`."""
    known = packaged()
    if name in known:
        return Path(str(resources.files(__package__).joinpath("packaged", f"{name}.toml")))
    if name.endswith(".toml") and Path(name).is_file():
        return Path(name).absolute()
    if name.endswith(".toml"):
        raise ConfigError(f"{SETTING}: there is no file {name!r}")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"{SETTING}: unknown harness {name!r}; {hint}allowed: {', '.join(known)}, or a TOML file"
    )


def read_harness(name: str) -> Harness:
    """Read a harness by its name or file. Raises `ConfigError` naming file, key and value."""
    path = harness_path(name)
    try:
        found = Harness.model_validate(read_toml(path))
        _check(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        value = "" if first["type"] in ("missing", "value_error") else f", got {str(first['input'])[:100]!r}"
        raise ConfigError(f"{SETTING}: {path}: {where + ': ' if where else ''}{message}{value}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{SETTING}: {path}: {error}") from error
    return found


def _check(harness: Harness) -> None:
    unknown = set(harness.limits) - set(LIMITS)
    if unknown:
        raise ValueError(f"limits.{min(unknown)}: unknown; allowed: {', '.join(LIMITS)}")
    harness.sandbox_limits(1.0)
    for path in harness.files:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"files: {path!r} must be a path below the home")
    texts = (*harness.command, harness.stdin, *harness.environment.values(), *harness.files.values())
    if not any("{prompt}" in text for text in texts):
        raise ValueError(
            "the prompt is passed nowhere; put {prompt} into command, stdin, environment or files"
        )


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Return a text with its placeholders filled in, and everything else in braces as it is."""
    return _PLACE.sub(lambda found: str(values[found[1]]) if found[1] in values else found[0], text)
