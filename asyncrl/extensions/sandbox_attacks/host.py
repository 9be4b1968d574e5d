"""The bait: what a sandboxed program must not reach, set up outside for one attack suite."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

from asyncrl.scratch import scratch_folder


class Host:
    """A secret file, a world-writable folder, listening sockets and a victim process. All on this machine only."""

    def __init__(self) -> None:
        self.token = f"asyncrl-bait-{secrets.token_hex(12)}"
        self._held = contextlib.ExitStack()
        self.folder = self._held.enter_context(scratch_folder("check"))
        self.folder.chmod(0o755)
        self.secret = self.folder / "secret"
        self.secret.write_text(self.token)
        self.secret.chmod(0o644)
        self.open_folder = self.folder / "open"
        self.open_folder.mkdir()
        self.open_folder.chmod(0o777)
        self.reached: list[str] = []
        """Names of the sockets that received something."""
        self.sockets: dict[str, socket.socket] = {}
        self.victim = subprocess.Popen(
            ["/bin/sleep", "600"],
            env={"SECRET": self.token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        # In this process's environment too, which a careless backend would pass on.
        os.environ["ASYNCRL_CHECK_BAIT"] = self.token
        self._listen("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self._listen("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self._listen("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.token}")
        self._listen("path", socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        return self

    def _listen(self, name: str, family: int, kind: int, address: str | tuple[str, int]) -> None:
        sock = socket.socket(family, kind)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen(8)
        sock.setblocking(False)
        self.sockets[name] = sock
        asyncio.get_running_loop().add_reader(sock, self._on_contact, name)

    def _on_contact(self, name: str) -> None:
        sock = self.sockets[name]
        with contextlib.suppress(BlockingIOError):
            if sock.type == socket.SOCK_DGRAM:
                sock.recvfrom(1000)
            else:
                sock.accept()[0].close()
            self.reached.append(name)

    def port(self, name: str) -> int:
        return int(self.sockets[name].getsockname()[1])

    def processes_with(self, text: str) -> list[int]:
        """Pids of running processes whose command line contains `text`."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{entry}/cmdline").read_bytes()
                    if text.encode() in line and b"sleep" in line:
                        found.append(int(entry))
        return found

    def end(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(self, *exc: object) -> None:
        os.environ.pop("ASYNCRL_CHECK_BAIT", None)
        for sock in self.sockets.values():
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self.victim.kill()
        self.victim.wait()
        self._held.close()
