"""A harness: the file that says how an agent program is installed, started and told its model."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

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
_IMAGE = re.compile(
    r"[a-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}|localhost/[a-z0-9][A-Za-z0-9._/-]*:[\w.-]+"
)
OWN = (
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "tmp", "usr", "work",
)  # fmt: skip
"""First folders of paths at which a sandbox has its own files."""


class Program(BaseModel):
    """Where the program comes from: a package of a registry in one version, an image's folder, or a path."""

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
    image: str | None = None
    """A container image: `NAME@sha256:DIGEST`, or `localhost/NAME:TAG` of one that was built on this machine."""
    folder: str | None = None
    """The folder of the image that is the program; a sandbox shows it at the same path."""
    engine: Literal["podman", "docker"] | None = None
    """What fetches the image; None for podman."""

    @field_validator("image")
    @classmethod
    def _pinned(cls, value: str | None) -> str | None:
        if value is not None and not _IMAGE.fullmatch(value):
            raise ValueError(
                "must be NAME@sha256:DIGEST, or localhost/NAME:TAG for an image that was built on this machine, got "
                f"{value[:100]!r}"
            )
        return value

    @field_validator("folder")
    @classmethod
    def _apart(cls, value: str | None) -> str | None:
        if value is not None and (
            not value.startswith("/")
            or posixpath.normpath(value) != value
            or value.split("/")[1] in ("", *OWN)
        ):
            raise ValueError(
                f"must be an absolute path outside of /{', /'.join(OWN)}, where a sandbox has its own files; such as "
                f"/opt/agent, got {value[:100]!r}"
            )
        return value

    @model_validator(mode="after")
    def _one(self) -> Program:
        given = [n for n in ("npm", "pip", "path", "image") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(
                f"program: give one of npm, pip, path and image, got {', '.join(given) or 'none'}"
            )
        of_image, of_packages = ("folder", "engine"), ("version", "python", "packages")
        for key in of_packages if given == ["image"] else of_image:
            if getattr(self, key):
                raise ValueError(
                    f"program.{key}: must be left out with {given[0]}, got {getattr(self, key)!r}"
                )
        if given == ["image"] and self.folder is None:
            raise ValueError("program.folder: missing; the folder of the image that is the program")
        if given[0] in ("npm", "pip") and self.version is None:
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
