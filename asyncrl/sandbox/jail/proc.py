"""Reads from /proc which processes a tree has and how much memory they hold."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Container

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _send_buffer_bytes() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/net/core/wmem_default") as file:
        return int(file.read())
    return 212_992


SOCKET_BYTES = _send_buffer_bytes() + 64 * 1024
"""A socket's send buffer, plus the one further packet that the kernel accepts."""
OWN_NETWORK = os.stat("/proc/self/net/sockstat").st_ino if os.path.exists("/proc/self/net/sockstat") else 0
"""Inode of a file that exists once per network namespace, in this process's own."""


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def _read_all(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    return found


def descendants(root: int) -> list[int]:
    """Return every process below `root`, without it; those that vanish meanwhile are skipped."""
    found: list[int] = []
    stack = [root]
    while stack:
        with contextlib.suppress(OSError):
            children = _children_of(stack.pop())
            found += children
            stack += children
    return found


def orphans_of_uid(uid: int, known: Container[int]) -> list[int]:
    """Return this process's own children that belong to the real uid and are not `known`."""
    found = []
    for pid in _children_of(os.getpid()):
        with contextlib.suppress(OSError):
            if pid not in known and os.stat(f"/proc/{pid}").st_uid == uid:
                found.append(pid)
    return found


def most_private_bytes(pids: list[int]) -> int:
    """Return a cheaper upper bound of `private_bytes`: it includes mapped program files and overestimates page
    tables."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            size, resident = _read(f"/proc/{pid}/statm").split()[:2]
            total += (int(resident) + 2 * int(size)) * PAGE_BYTES
    return total


def private_bytes(pids: list[int]) -> int:
    """Return the anonymous and shared-anonymous memory and the page tables of these processes.

    Pages shared after a fork count once each. Page tables are not part of the resident size, and reading through a
    large empty mapping creates nothing else.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in _read(f"/proc/{pid}/status").splitlines():
                if line.startswith((b"RssAnon:", b"RssShmem:", b"VmPTE:")):
                    total += int(line.split()[1]) * 1024
    return total


def socket_bytes(pids: list[int]) -> int:
    """Return the most memory that the buffers of these processes' sockets can hold.

    The kernel reports the number of sockets, not what local ones hold, so each counts as a full buffer (see
    `seccomp`: its size cannot be changed). In the programs' own network namespace this includes sockets that wait to
    be accepted or were sent over another one; in the host's namespace only those that a process has open.
    """
    total = 0
    seen: set[int] = set()
    open_ones: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            network = os.stat(f"/proc/{pid}/net/sockstat").st_ino
            if network == OWN_NETWORK:
                links = (os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
                open_ones.update(link for link in links if link.startswith("socket:"))
            elif network not in seen:
                seen.add(network)
                total += _network_bytes(f"/proc/{pid}/net")
    return total + len(open_ones) * SOCKET_BYTES


def _network_bytes(folder: str) -> int:
    """Return the same for all sockets of a network namespace. TCP's buffers grow, so their queues are added."""
    total = int(_read(f"{folder}/sockstat").split()[2]) * SOCKET_BYTES
    for name in ("tcp", "tcp6"):
        # A host without IPv6 has no file for it.
        with contextlib.suppress(FileNotFoundError):
            # The tables are read only if they are not empty, since the kernel walks through those of the whole host.
            counts = _read(f"{folder}/sockstat{name[3:]}").partition(name.upper().encode() + b": inuse ")[2]
            for line in _read_all(f"{folder}/{name}").splitlines()[1:] if int(counts.split()[0]) else []:
                sent, _, received = line.split()[4].partition(b":")
                # Twice, for the kernel's own part of every packet.
                total += 2 * (int(sent, 16) + int(received, 16))
    return total


def memory_file_bytes(pids: list[int]) -> int:
    """Return the memory in open memfds of these processes, where a userspace kernel keeps its programs' memory."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(entry.path).startswith("/memfd:"):
                    status = os.stat(entry.path)
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def holds_more_than(root: int, limit_bytes: int, memory_files: bool = False) -> bool:
    """Return whether the tree below `root` holds more memory than `limit_bytes`."""
    pids = descendants(root)
    left = limit_bytes - socket_bytes(pids)
    # The cheap number is an upper bound; the exact one is read only if it may matter.
    if left < 0 or (most_private_bytes(pids) > left and private_bytes(pids) > left):
        return True
    return memory_files and memory_file_bytes(pids) > limit_bytes


def any_of_uid(uid: int) -> bool:
    """Return whether there is a process whose real uid is `uid`, a zombie too.

    The kernel says so by its answer to a question about their priority; reading /proc/PID/status of every process takes
    20 ms on a host with a thousand.
    """
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def kill_uid(uid: int) -> None:
    """Send SIGKILL to every process whose real uid is `uid`.

    Sent from inside the uid, one call reaches all its processes at once, so none can escape by forking. Raises
    `ValueError` for this process's own uid and root's.
    """
    if uid in (0, *os.getresuid()):
        raise ValueError(f"uid {uid} is not a sandbox's")
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(pid, 0)


def reap_any() -> dict[int, int]:
    """Wait status of every child that has ended."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended


def kill_descendants(root: int, timeout_s: float = 5.0) -> bool:
    """Kill the tree below `root` until nothing is left of it; True if that worked.

    `root` must be this process (which then reaps) or reap its own children.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pids = descendants(root)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if root == os.getpid():
            reap_any()
        if not pids:
            return True
        time.sleep(0.001)
    return False
