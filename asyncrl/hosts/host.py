"""A host: one machine, or several that act as one, on which processes of a run are started, watched and ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from asyncrl.process_start import Process
from asyncrl.startup import Meter


@dataclass(frozen=True, slots=True)
class Start:
    """What is to be started. `command` is `python -m asyncrl ARGUMENT...`."""

    name: str
    command: Sequence[str]
    log: Path
    """The file in the run folder that has its output, wherever it runs."""
    ready_file: Path | None = None
    """The file in the run folder that has its address once it serves, wherever it runs."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside the variables of the host."""
    nice: int = 0
    """Its niceness, added to that of what starts it."""


class Host(Protocol):
    """Where a process runs. No call waits for another machine longer than seconds.

    Whatever the host, the output and the signs of life of its processes are in the run folder: `Start.log`,
    `Start.ready_file`, and the files that a trainer touches.
    """

    @property
    def bind_options(self) -> Sequence[str]:
        """What `asyncrl serve ROLE` is told about where to listen, beside a port."""
        ...

    @property
    def address(self) -> str:
        """The host under which other machines reach what is started here."""
        ...

    @property
    def num_machines(self) -> int:
        """On how many machines a process that is started here has its parts."""
        ...

    def free_port(self) -> int:
        """Return a port that nothing here listens on now. Raises `AsyncRLError`."""
        ...

    def start(self, start: Start) -> Process:
        """Start a process. It ends with this one. Raises `AsyncRLError` where that is not possible."""
        ...

    def note_descendants(self, process: Process) -> None:
        """Remember what a process has started, so that `kill` finds that when the process has ended."""
        ...

    def kill(self, process: Process, wait_s: float) -> None:
        """Kill a process and everything it started. Raises `subprocess.TimeoutExpired` if it does not end in time."""
        ...

    def ended_on(self, process: Process) -> str:
        """Return the machine on which a process has ended that is on several, "" for one that is on one."""
        ...

    def meter(self, process: Process) -> Meter:
        """Return what measures its progress while it starts."""
        ...

    def serves_at(self, url: str) -> bool:
        """True where a process that is started here may have this address."""
        ...

    def problem(self) -> str:
        """Return why nothing can be started here now, "" where it can."""
        ...
