"""The few system calls that Python's standard library lacks. Standard library only: this also runs inside a jail.

Every function raises `OSError` with the call's name if the kernel refuses it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SECCOMP_MODE_FILTER = 2

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
LOOPBACK = "127.0.0.1"

_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446


def _check(result: int, name: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, value: int = 0) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl({option})")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def enter_namespace(fd: int) -> None:
    _check(_libc.setns(fd, 0), "setns")


def new_network_namespace(ports: Sequence[int] = ()) -> tuple[int, list[int]]:
    """Return a descriptor of a new network namespace, and sockets that listen on ports of its loopback. Needs
    CAP_SYS_ADMIN.

    Without ports it is empty: its loopback is down. A child makes it, and the caller stays in its own: without root on
    the host, it could leave its namespace but not return.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            unshare(CLONE_NEWNET)
            namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            if ports:
                _raise_loopback()
            servers = [socket.create_server((LOOPBACK, port), backlog=64) for port in ports]
            fds = [namespace, *(server.fileno() for server in servers)]
            socket.send_fds(theirs, [b"1"], fds)
        finally:
            os._exit(0)
    theirs.close()
    try:
        with ours:
            said, fds, _, _ = socket.recv_fds(ours, 1, 1 + len(ports))
            for fd in fds:
                # `recv_fds` takes no notice of flags that would say so.
                os.set_inheritable(fd, False)
    finally:
        os.waitpid(pid, 0)
    if said != b"1" or len(fds) != 1 + len(ports):
        raise OSError("a network namespace was refused")
    return fds[0], fds[1:]


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(result, f"mount({target})")


def unmount(target: str) -> None:
    """Detach at once; the memory is freed when the last open file goes."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount2({target})")


def drop_capabilities() -> None:
    """Give up every capability of the calling thread, for good (with no_new_privs set)."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    number = _CAPSET[platform.machine()]
    _check(_libc.syscall(ctypes.c_long(number), header, bytes(24)), "capset")


def install_filter(program: bytes) -> None:
    """Put the calling thread under a seccomp filter (`seccomp.build_filter`). Needs no_new_privs."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    )
    result = _libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), header, 0, 0)
    _check(result, "prctl(PR_SET_SECCOMP)")


def landlock_abi() -> int:
    """Return the kernel's Landlock version, 0 without Landlock."""
    return max(0, _libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), 1))


def landlock_restrict(handled: bytes, rules: list[tuple[int, str]]) -> None:
    """Confine the calling thread. `handled`: the packed ruleset attribute; `rules`: (access bits, path)."""
    number = _libc.syscall(ctypes.c_long(LANDLOCK_CREATE), handled, ctypes.c_size_t(len(handled)), 0)
    ruleset = _check(number, "landlock_create_ruleset")
    for access, path in rules:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", access, parent)
        _check(_libc.syscall(ctypes.c_long(LANDLOCK_ADD), ruleset, 1, rule, 0), f"landlock_add_rule({path})")
        os.close(parent)
    _check(_libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT), ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
