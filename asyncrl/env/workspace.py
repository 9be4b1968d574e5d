"""Tasks that are a folder of files to work in: what an agent program of its own gets, and who judges what it leaves.

An environment whose tasks can be done by any program that edits files offers `workspace` and `judge`. An agent's
harness then puts the files where its program works, and judges a copy of what it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from asyncrl.env.protocol import Step
from asyncrl.sandbox.protocol import MIB, Limits, Sandbox, SandboxSpec

JUDGE_SPEC = SandboxSpec(limits=Limits(cpu_s=60, processes=64, open_files=256, disk_bytes=64 * MIB))


@dataclass(frozen=True, slots=True)
class Workspace:
    """What an agent is given."""

    instruction: str
    files: Mapping[str, bytes]
    """By their path below the work folder."""
    executable: frozenset[str] = frozenset()
    """Paths in `files` that may be run."""
    judge_timeout_s: float = 60.0
    """The longest that judging takes."""
    judge_spec: SandboxSpec = JUDGE_SPEC
    """The sandbox that judges; what the agent left comes on top of its disk. The agent's own sees the same image."""
    packed: bytes = b""
    """A tar archive that is unpacked before `files`, for what these cannot say: links, empty folders, modes."""
    setup: tuple[str, ...] = ()
    """A program that is run in the folder before the agent's; its failure is the task's."""
    steps: int = 1
    """How often an agent may be asked, one after the other: see `WorkspaceEnv.judge`."""


@runtime_checkable
class PreparedEnv(Protocol):
    """An environment whose folder takes long to make ready."""

    async def prepare(self) -> None:
        """Called once before `workspace`. Raises `InfrastructureError` where it cannot be made."""
        ...


@runtime_checkable
class WorkspaceEnv(Protocol):
    """An environment that offers its task as a folder."""

    def workspace(self) -> Workspace:
        """Return instruction and files of the task."""
        ...

    async def judge(self, box: Sandbox) -> Step:
        """Judge the work folder of a sandbox in which no program of the agent runs.

        Returns reward, success and components. Without `done` its one message, of role user, is what an agent is asked
        next, in the work folder as this sandbox then has it; the rewards add up. Raises `EpisodeError` where the work
        cannot be judged.
        """
        ...
