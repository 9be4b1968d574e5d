"""Several hosts that act as one for a process with ranks on all of them: the trainer, or an engine over machines."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from asyncrl.hosts.host import Host, Start
from asyncrl.process_start import Process
from asyncrl.startup import Meter


@dataclass(slots=True)
class SpreadProcess:
    """Implements `Process`: it has ended when one part has failed, or all have ended well.

    hosts, names: of the parts; the host itself may have others since.
    """

    parts: Sequence[Process]
    hosts: Sequence[Host]
    names: Sequence[str]

    @property
    def pid(self) -> int:
        return self.parts[0].pid

    @property
    def returncode(self) -> int | None:
        return _combined([part.returncode for part in self.parts])

    @property
    def ended_part(self) -> int | None:
        """Which part it has ended by; None while it has not failed."""
        code = self.returncode
        return next((i for i, part in enumerate(self.parts) if code and part.returncode == code), None)

    def poll(self) -> int | None:
        return _combined([part.poll() for part in self.parts])

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        codes = [
            part.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for part in self.parts
        ]
        code = _combined(list(codes))
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        for part in self.parts:
            part.send_signal(sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _combined(codes: Sequence[int | None]) -> int | None:
    failed = [code for code in codes if code]
    # An exit code says more than the signal that ended another part because of it.
    return max(failed) if failed else (None if None in codes else 0)


@dataclass(frozen=True, slots=True)
class _Sum:
    meters: Sequence[Meter]

    def cpu_s(self) -> float:
        return sum(meter.cpu_s() for meter in self.meters)

    def data_bytes(self) -> int:
        return sum(meter.data_bytes() for meter in self.meters)


class SpreadHost:
    """Implements `Host` by several. Their output goes to one log. The ranks meet on the first one, which also has the
    process's address, if it has one.
    """

    bind_options: Sequence[str] = ()
    """None in common: each part is told those of its own."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.names: list[str] = []
        self.env: list[Mapping[str, str]] = []

    def put(self, parts: Sequence[tuple[Host, str, Mapping[str, str]]]) -> None:
        """Have the parts start on these hosts from now on: each with the name of its machine, and the variables that
        show its GPUs there."""
        self.hosts = [host for host, _, _ in parts]
        self.names = [name for _, name, _ in parts]
        self.env = [env for _, _, env in parts]

    @property
    def address(self) -> str:
        return self.hosts[0].address

    @property
    def num_machines(self) -> int:
        return len(self.hosts)

    def free_port(self) -> int:
        return self.hosts[0].free_port()

    def start(self, start: Start) -> Process:
        where = ["--nodes", str(len(self.hosts)), "--main-address", self.address]
        where += ["--main-port", str(self.free_port())]
        parts: list[Process] = []
        try:
            for rank, host in enumerate(self.hosts):
                own = host.bind_options if start.ready_file is not None else ()
                command = [*start.command, *own, *where, "--node-rank", str(rank)]
                env = {**start.env, **self.env[rank]}
                parts.append(host.start(replace(start, command=command, env=env)))
        except BaseException:
            self._kill(parts, self.hosts, 0.0)
            raise
        return SpreadProcess(parts, self.hosts, self.names)

    def note_descendants(self, process: Process) -> None:
        assert isinstance(process, SpreadProcess)
        for host, part in zip(process.hosts, process.parts, strict=True):
            host.note_descendants(part)

    def kill(self, process: Process, wait_s: float) -> None:
        assert isinstance(process, SpreadProcess)
        self._kill(process.parts, process.hosts, wait_s)

    def _kill(self, parts: Sequence[Process], hosts: Sequence[Host], wait_s: float) -> None:
        for host, part in zip(hosts, parts, strict=False):
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.kill(part, wait_s)

    def ended_on(self, process: Process) -> str:
        assert isinstance(process, SpreadProcess)
        part = process.ended_part
        return "" if part is None else process.names[part]

    def meter(self, process: Process) -> Meter:
        assert isinstance(process, SpreadProcess)
        return _Sum([host.meter(part) for host, part in zip(process.hosts, process.parts, strict=True)])

    def serves_at(self, url: str) -> bool:
        return self.hosts[0].serves_at(url)

    def problem(self) -> str:
        return next((problem for host in self.hosts if (problem := host.problem())), "")
