"""What launcher and nodes tell each other: fields, ranges, and the arguments that a role may be started with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asyncrl.errors import InputError
from asyncrl.extensions.table import rows
from asyncrl.http_checks import wrong_fields
from asyncrl.services.buffer.messages import Url
from asyncrl.types import MAIN_POLICY

MAX_LOG_BYTES = 2**20
"""Most of each log that one report carries."""
BEAT_S = 5.0
"""A node repeats its registration this often."""
NODE_ROLES = ("buffer", "engine", "env", "rollout", "trainer")
"""Roles that may run on a node. The others stay where the run folder is."""

Role = Literal["buffer", "engine", "env", "rollout", "trainer"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
Whole = Annotated[int, Field(ge=0, lt=2**53)]
M = TypeVar("M", bound=BaseModel)

DATA_FILES = (".json", ".jinja", ".model", ".safetensors", ".tiktoken", ".txt")
"""What is sent of a model's folder: data, never code."""
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_URL = re.compile(r"https?://[^\s,@]{1,500}")
_POLICY = re.compile(
    r"[A-Za-z][A-Za-z0-9_-]{0,127}=https?://[^\s,@]{1,500}(?:,https?://[^\s,@]{1,500}){1,4096}"
)
_NUMBER = re.compile(r"[0-9]{1,9}")
_PARTS = {"--nodes": _NUMBER, "--node-rank": _NUMBER, "--main-address": _HOST, "--main-port": _NUMBER}
"""Options of a process that has parts on several machines."""
_ARGUMENTS: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    "buffer": {f"--{row.name}": _URL for row in rows("ledger_followers")},
    "engine": _PARTS,
    "env": {},
    "rollout": {
        **{"--buffer": _URL, "--engines": _URL, "--env": _URL, "--name": _NAME},
        "--policy": _POLICY,
    },
    "trainer": {"--buffer": _URL, "--main-buffer": _URL, **_PARTS},
}

_REPEATED = ("--policy",)
"""Options that take one value, and are given again for each further one."""


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Register(Message):
    """A node. `boot` tells one start of it from the next; `run` is the one whose files it has, "" without any. `room`:
    bytes that the weights of that run have where the node keeps them, 0 without a run."""

    name: Name
    url: Url
    version: Annotated[str, Field(max_length=64)]
    boot: Name
    run: Annotated[str, Field(max_length=128)] = ""
    gpus: Whole
    roles: list[Role]
    room: Whole = 0
    weights_in: Annotated[str, Field(max_length=4096)] = ""
    """The folder that has so much room."""


class FileEntry(Message):
    size: Whole
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class PolicyFiles(Message):
    """A policy as a node fetches it: its configuration, and its model, as the sizes and checksums of the files of a
    folder or as a name that every node can load."""

    config: dict[str, Any]
    model: Annotated[str, Field(max_length=4096)] = ""
    files: dict[FileName, FileEntry] = Field(default_factory=dict, max_length=1024)


class RunFiles(PolicyFiles):
    """A run as a node fetches it: its main policy, and by name the others of which something runs on nodes."""

    run: Name
    policies: dict[Name, PolicyFiles] = Field(default_factory=dict, max_length=256)


class StartProcess(Message):
    """`arguments` are options of `asyncrl serve ROLE` and their values; `gpus` are positions among the node's; `policy`
    is the one that the process is of."""

    name: Name
    role: Role
    policy: Name = MAIN_POLICY
    arguments: dict[str, list[str]]
    gpus: list[Whole] | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    nice: Annotated[int, Field(ge=0, le=19)] = 0


class EndProcess(Message):
    """`how`: SIGTERM to the process alone, or SIGKILL to it and all it started."""

    name: Name
    how: Literal["terminate", "kill"]


class Report(Message):
    """`logs`: how many bytes of each log are known already. `measured`: processes whose use of the processor and data
    is wanted though they serve."""

    logs: dict[Name, Whole]
    measured: list[Name] = Field(default_factory=list, max_length=4096)


class Reach(Message):
    urls: list[Url] = Field(max_length=4096)


def checked(kind: type[M], body: Any) -> M:
    """Return a message. Raises `InputError` naming the wrong fields."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise InputError(wrong_fields(error.errors(include_url=False))) from error


def checked_arguments(role: str, arguments: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the words for a role's options. Raises `InputError` for an option or value that a launcher never sends:
    paths, import paths and everything else that could name code stay the node's own."""
    words: list[str] = []
    for option, values in arguments.items():
        pattern = _ARGUMENTS[role].get(option)
        if pattern is None:
            allowed = ", ".join(_ARGUMENTS[role]) or "none"
            raise InputError(
                f"arguments: serve {role} is not given {option!r:.64} on a node; allowed: {allowed}"
            )
        for value in values:
            if not pattern.fullmatch(value):
                raise InputError(f"arguments: {option} must match {pattern.pattern}, got {value!r:.64}")
        if option in _REPEATED:
            words += [word for value in values for word in (option, value)]
        else:
            words += [option, *values]
    return words
