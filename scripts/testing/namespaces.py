"""Machines out of Linux namespaces: each has its own address, host name, `/dev/shm` and `/tmp`. Needs root.

They are joined by a bridge, and some of them by a second one behind a slow link. What is common is the rest of the file
system, such as the installation of asyncrl, and a fork server where there is one: what it forks for a process of a
machine is on that machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from asyncrl.credentials import VARIABLE
from asyncrl.process_start import FORK_SERVER

RELAY = Path(__file__).with_name("frame_relay.py")
TRY_S = 30.0
"""What the start of Python on a machine may take."""
_ENTER = """
hostname "$1"; mount --bind "$2" /etc/hosts; mount -t tmpfs tmpfs /dev/shm
if [ "$3" ]; then touch /dev/shm/server; mount --bind "$3" /dev/shm/server; fi
mount -t tmpfs tmpfs /tmp
if [ "$3" ]; then
    mkdir -p "${3%/*}"; touch "$3"; mount --move /dev/shm/server "$3"; rm /dev/shm/server
fi
shift 3; exec "$@"
"""


def problem() -> str:
    """Return why machines cannot be made of namespaces here, "" if they can: one is made, and asyncrl started there."""
    if os.geteuid() != 0:
        return "namespaces as machines need root"
    missing = [name for name in ("ip", "unshare", "bash") if shutil.which(name) is None]
    if missing:
        return f"namespaces as machines need {', '.join(missing)}"
    with tempfile.NamedTemporaryFile() as log:
        try:
            with Machines(1) as machines:
                command = [sys.executable, "-c", "import asyncrl"]
                status = machines.start(1, command, Path(log.name)).wait(timeout=TRY_S)
        except (subprocess.SubprocessError, OSError) as error:
            reason = getattr(error, "stderr", None) or error
            return f"no machines of namespaces here: {str(reason).strip()}"
        if status:
            reason = Path(log.name).read_text().strip()
            # A machine's /tmp is its own, so an installation below it is not there.
            return f"asyncrl does not start on a machine of namespaces: {reason}"
    return ""


@dataclass(frozen=True, slots=True)
class Link:
    """A link in user space. delay_s: one way. bytes_per_s: of each direction."""

    delay_s: float
    bytes_per_s: float


class Machines:
    """This machine, as number 0, and `count` further ones, at `address(i)` and under the names `node1`, `node2`, ...

    far: the numbers of those that are reached over `link` only; among themselves they are on a fast network.
    """

    def __init__(self, count: int, far: Collection[int] = (), link: Link | None = None) -> None:
        self.numbers = range(1, count + 1)
        self.far, self.link = frozenset(far), link
        self._relay: subprocess.Popen[bytes] | None = None
        self._id = f"a{os.getpid() % 100000}"
        self._net = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self._folder = tempfile.TemporaryDirectory(prefix="asyncrl-machines-")

    def address(self, number: int) -> str:
        return f"{self._net}.{number + 1}"

    def __enter__(self) -> Machines:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def _make(self) -> None:
        hosts = [f"{self.address(i)} node{i}" for i in (0, *self.numbers)]
        self._hosts.write_text("127.0.0.1 localhost\n" + "\n".join(hosts) + "\n")
        for hub in self._hubs:
            _ip("netns", "add", hub)
            _inside(hub, "link", "add", "name", "bridge0", "type", "bridge")
            _inside(hub, "link", "set", "bridge0", "up")
        if self.link is not None:
            self._join_hubs(self.link)
        for number in (0, *self.numbers):
            inner, outer = f"{self._id}v{number}", f"{self._id}b{number}"
            hub = self._hubs[number in self.far]
            where = []
            if number:
                _ip("netns", "add", self._space(number))
                where = ["netns", self._space(number)]
            _ip("link", "add", inner, *where, "type", "veth", "peer", "name", outer, "netns", hub)
            _inside(hub, "link", "set", outer, "master", "bridge0", "up")
            own = ["netns", "exec", self._space(number), "ip"] if number else []
            _ip(*own, "addr", "add", f"{self.address(number)}/24", "dev", inner)
            _ip(*own, "link", "set", inner, "up")
            if number:
                _ip(*own, "link", "set", "lo", "up")

    def _join_hubs(self, link: Link) -> None:
        limits = ["--delay-s", str(link.delay_s), "--bytes-per-s", str(link.bytes_per_s)]
        command = [sys.executable, "-P", str(RELAY), *self._hubs, "link0", *limits]
        self._relay = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._relay.stdout is not None
        if not self._relay.stdout.readline():
            raise OSError("the relay of the slow link did not start; its error is above")
        for hub in self._hubs:
            _inside(hub, "link", "set", "link0", "master", "bridge0", "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for number in self.numbers:
            self.kill(number)
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        subprocess.run(["ip", "link", "del", f"{self._id}v0"], check=False, capture_output=True)
        for space in (*self._hubs, *map(self._space, self.numbers)):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        self._folder.cleanup()

    def start(
        self, number: int, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on one of the further machines. It ends with `kill`, or with these machines."""
        env = {**os.environ, **(env or {})}
        with open(log, "ab") as sink:
            return subprocess.Popen(
                [
                    *(
                        "ip",
                        "netns",
                        "exec",
                        self._space(number),
                        "unshare",
                        "-m",
                        "-u",
                        "--propagation",
                        "private",
                    ),
                    *("bash", "-ec", _ENTER, "enter", f"node{number}", str(self._hosts)),
                    *(env.get(FORK_SERVER, ""), *command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=env,
                start_new_session=True,
            )

    def join(
        self, number: int, launcher: str, token: str, log: Path, roles: str = ""
    ) -> subprocess.Popen[bytes]:
        """Have a machine be a node of a run, until that is over. roles: those it takes, "" for all."""
        command = [sys.executable, "-m", "asyncrl", "serve", "node", "--launcher", launcher]
        command += ["--roles", roles] if roles else []
        return self.start(number, command, log, {VARIABLE: token, "XDG_STATE_HOME": "/tmp/state"})

    def pids(self, number: int) -> list[int]:
        """Return the processes on a machine."""
        done = subprocess.run(
            ["ip", "netns", "pids", self._space(number)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in done.stdout.split()]

    def kill(self, number: int) -> int:
        """Kill everything on a machine, as when it loses power; return how many processes that were."""
        killed: set[int] = set()
        while pids := [pid for pid in self.pids(number) if pid not in killed]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        return len(killed)

    def link_bytes(self) -> tuple[int, int]:
        """Return how many bytes have gone over the link: to the far machines, and from them."""
        stats = json.loads(_inside(self._hubs[0], "-s", "-j", "link", "show", "link0"))[0]["stats64"]
        return stats["tx"]["bytes"], stats["rx"]["bytes"]

    @property
    def _hubs(self) -> list[str]:
        """The namespaces of the bridges: the near one, and the one behind the link."""
        return [self._space(name) for name in (("hub", "far") if self.link is not None else ("hub",))]

    @property
    def _hosts(self) -> Path:
        return Path(self._folder.name) / "hosts"

    def _space(self, name: int | str) -> str:
        return f"{self._id}-{name}"


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _inside(space: str, *words: str) -> str:
    return _ip("netns", "exec", space, "ip", *words)
