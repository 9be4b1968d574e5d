"""The system-call filter, assembled in Python: classic BPF for x86-64 and aarch64.

It refuses calls that ordinary programs do not need, but kernel exploits, namespace tricks and unbounded kernel memory
do. Calls newer than the newest one known here answer ENOSYS, so a new kernel adds no attack surface. The numbers are
those of the kernel's syscall tables; tests check them against the machine's headers.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

LD_WORD, JMP_EQ, JMP_GE, JMP_SET, RETURN, AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
OFFSET_NUMBER, OFFSET_ARCH = 0, 4
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

X32_BIT = 0x40000000
FIRST_UNKNOWN = 457
"""Calls are numbered alike on both machines from 424 on; 456 (futex_requeue) is the newest one allowed."""

CLONE_NEW_ANY = 0x7E020000
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_TYPE_MASK, SOCK_DGRAM, SOCK_RAW = 0xF, 2, 3
SOL_SOCKET = 1
BUFFER_OPTIONS = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# name: (x86-64, aarch64); -1 where the machine has no such call.
REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "lookup_dcookie": (212, 18),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "ustat": (136, -1),
    "sysfs": (139, -1),
    "uselib": (134, -1),
}
# Kernel memory that no process's resident size shows; without these calls programs fall back to plain files.
ABSENT = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # Its flags are behind a pointer, which a filter cannot follow; libraries fall back to clone.
    "clone3": (435, 435),
}
CLONE = (56, 220)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)
SETSOCKOPT = (54, 208)
IOCTL = (16, 29)


@dataclass(frozen=True, slots=True)
class Machine:
    """One instruction set the filter is made for."""

    column: int
    audit_arch: int


MACHINES = {"x86_64": Machine(0, 0xC000003E), "aarch64": Machine(1, 0xC00000B7)}


def _op(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _ret(value: int) -> bytes:
    return _op(RETURN, value)


def _argument(index: int) -> bytes:
    """Load the low 32 bits of a call's argument (both machines are little-endian)."""
    return _op(LD_WORD, 16 + 8 * index)


def _when_call(number: int, body: list[bytes]) -> list[bytes]:
    """Run `body` for one call number (it must return), otherwise continue with the number still loaded."""
    return [_op(JMP_EQ, number, 0, len(body)), *body]


def _only_values(index: int, values: tuple[int, ...], otherwise: int) -> list[bytes]:
    """Allow the call if its argument is one of `values`."""
    checks = [_op(JMP_EQ, value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_argument(index), *checks, _ret(otherwise), _ret(ALLOW)]


def _never_values(index: int, values: tuple[int, ...], then: int, mask: int = 0xFFFFFFFF) -> list[bytes]:
    """Answer the call with `then` if its masked argument is one of `values`, else allow it."""
    checks = [_op(JMP_EQ, value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_argument(index), _op(AND, mask), *checks, _ret(ALLOW), _ret(then)]


def _only_sockets(families: tuple[int, ...], otherwise: int) -> list[bytes]:
    """Allow sockets of these families, local ones only if they are connected.

    A local datagram socket keeps what many senders have queued after they are closed, so its memory could not be
    derived from the number of sockets (`proc.socket_bytes`). SOCK_RAW is another name for it.
    """
    is_datagram = _never_values(1, (SOCK_DGRAM, SOCK_RAW), otherwise, SOCK_TYPE_MASK)
    unix = [_op(JMP_EQ, AF_UNIX, 0, len(is_datagram)), *is_datagram] if AF_UNIX in families else []
    others = tuple(family for family in families if family != AF_UNIX)
    return [_argument(0), *unix, *_only_values(0, others, otherwise)]


def _without_buffer_sizes() -> list[bytes]:
    """Answer calls that set the size of a socket's buffers with success, without executing them.

    The kernel itself treats such sizes as hints and limits them silently; an error would end programs that set one.
    """
    options = _never_values(2, BUFFER_OPTIONS, ERRNO)
    return [_argument(1), _op(JMP_EQ, SOL_SOCKET, 1, 0), _ret(ALLOW), *options]


FAMILIES = {"sealed": (), "default": (AF_UNIX,), "network": (AF_UNIX, AF_INET, AF_INET6)}


def build_filter(variant: str = "default", machine: str | None = None) -> bytes:
    """Return the filter program: 8 bytes per instruction, as `bwrap --seccomp` and `prctl(PR_SET_SECCOMP)` take it.

    `variant` says which sockets may be made: "default" local ones; "network" Internet ones as well, for a network
    namespace that reaches only a proxy; "sealed" none, for a jail that shares the host's namespaces.
    Raises `NotImplementedError` for a machine without a table.
    """
    name = machine or platform.machine()
    if name not in MACHINES:
        raise NotImplementedError(
            f"no system-call table for machine {name!r}; there are {', '.join(MACHINES)}"
        )
    here = MACHINES[name]
    refuse, absent = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    program = [
        _op(LD_WORD, OFFSET_ARCH),
        _op(JMP_EQ, here.audit_arch, 1, 0),
        _ret(KILL_PROCESS),
        _op(LD_WORD, OFFSET_NUMBER),
    ]
    if name == "x86_64":
        program += [_op(JMP_GE, X32_BIT, 0, 1), _ret(KILL_PROCESS)]
    program += [_op(JMP_GE, FIRST_UNKNOWN, 0, 1), _ret(absent)]
    families = FAMILIES[variant]
    column = here.column
    program += _when_call(SOCKET[column], _only_sockets(families, refuse))
    program += _when_call(SOCKETPAIR[column], _only_sockets((AF_UNIX,), refuse))
    program += _when_call(SETSOCKOPT[column], _without_buffer_sizes())
    program += _when_call(IOCTL[column], _never_values(1, (TIOCSTI, TIOCLINUX), refuse))
    clone_check = [_argument(0), _op(JMP_SET, CLONE_NEW_ANY, 0, 1), _ret(refuse), _ret(ALLOW)]
    program += _when_call(CLONE[column], clone_check)
    for table, answer in ((REFUSED, refuse), (ABSENT, absent)):
        for numbers in table.values():
            if numbers[column] >= 0:
                program += _when_call(numbers[column], [_ret(answer)])
    return b"".join([*program, _ret(ALLOW)])
