"""The system-call filter, run by an interpreter of classic BPF, for both machines."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from asyncrl.sandbox.jail import seccomp

ALLOWED, KILLED = seccomp.ALLOW, seccomp.KILL_PROCESS
REFUSED, ABSENT = seccomp.ERRNO | errno.EPERM, seccomp.ERRNO | errno.ENOSYS
STREAM, SEQPACKET = 1, 5
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


def verdict(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would answer. One accumulator; only the operations the filter uses."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, arch, 0, *padded)
    steps = [struct.unpack_from("=HBBI", program, 8 * i) for i in range(len(program) // 8)]
    at = accumulator = 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == seccomp.LD_WORD:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == seccomp.AND:
            accumulator &= operand
        elif code == seccomp.RETURN:
            return operand
        else:
            holds = {
                seccomp.JMP_EQ: accumulator == operand,
                seccomp.JMP_GE: accumulator >= operand,
                seccomp.JMP_SET: bool(accumulator & operand),
            }[code]
            at += if_true if holds else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request):
    return request.param


@pytest.fixture
def ask(machine):
    here = seccomp.MACHINES[machine]

    def ask(numbers, *arguments, variant="default"):
        number = numbers if isinstance(numbers, int) else numbers[here.column]
        return verdict(seccomp.build_filter(variant, machine), here.audit_arch, number, *arguments)

    return ask


def test_listed_calls_are_refused(ask, machine):
    column = seccomp.MACHINES[machine].column
    for table, answer in ((seccomp.REFUSED, REFUSED), (seccomp.ABSENT, ABSENT)):
        for name, numbers in table.items():
            if numbers[column] >= 0:
                assert ask(numbers) == answer, name


def test_ordinary_calls_pass(ask):
    for numbers in [
        (0, 63),
        (1, 64),
        (257, 56),
        (9, 222),
        (59, 221),
        (60, 93),
        (231, 94),
        (202, 98),
        (293, 59),
    ]:
        assert ask(numbers) == ALLOWED


def test_sockets_are_local_unless_the_variant_says_otherwise(ask):
    unix, inet, inet6, netlink, packet = 1, 2, 10, 16, 17
    assert ask(seccomp.SOCKET, unix, STREAM) == ALLOWED
    for family in (inet, inet6, netlink, packet):
        assert ask(seccomp.SOCKET, family) == REFUSED
    assert ask(seccomp.SOCKET, inet, variant="network") == ALLOWED
    assert ask(seccomp.SOCKET, inet6, variant="network") == ALLOWED
    assert ask(seccomp.SOCKET, netlink, variant="network") == REFUSED
    assert ask(seccomp.SOCKET, unix, STREAM, variant="sealed") == REFUSED
    assert ask(seccomp.SOCKETPAIR, unix, STREAM, variant="sealed") == ALLOWED
    assert ask(seccomp.SOCKETPAIR, inet, STREAM, variant="network") == REFUSED


def test_local_sockets_are_connected_ones_since_others_hold_more_than_they_count_for(ask):
    unix, inet, datagram, raw, close_on_exec = 1, 2, 2, 3, 0o2000000
    for numbers in (seccomp.SOCKET, seccomp.SOCKETPAIR):
        for kind in (datagram, raw):
            assert ask(numbers, unix, kind) == ask(numbers, unix, kind | close_on_exec) == REFUSED
        assert ask(numbers, unix, STREAM | close_on_exec) == ask(numbers, unix, SEQPACKET) == ALLOWED
    assert ask(seccomp.SOCKET, inet, datagram, variant="network") == ALLOWED


def test_wishes_for_larger_socket_buffers_are_answered_with_success_and_not_passed_on(ask):
    done, reuse_address = seccomp.ERRNO, 2
    for option in (7, 8, 32, 33):
        assert ask(seccomp.SETSOCKOPT, 3, 1, option) == done
        assert ask(seccomp.SETSOCKOPT, 3, 6, option) == ALLOWED
    assert ask(seccomp.SETSOCKOPT, 3, 1, reuse_address) == ALLOWED


def test_forks_and_threads_pass_but_not_new_namespaces(ask):
    thread = 0x003D0F00
    assert ask(seccomp.CLONE, 17) == ALLOWED
    assert ask(seccomp.CLONE, thread) == ALLOWED
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask(seccomp.CLONE, flag | 17) == REFUSED


def test_typing_into_a_terminal_is_refused(ask):
    assert ask(seccomp.IOCTL, 0, 0x5412) == REFUSED
    assert ask(seccomp.IOCTL, 0, 0x541C) == REFUSED
    assert ask(seccomp.IOCTL, 0, 0x5401) == ALLOWED


def test_calls_newer_than_the_table_do_not_exist(ask):
    assert ask(seccomp.FIRST_UNKNOWN) == ABSENT
    assert ask(600) == ABSENT
    assert ask(seccomp.FIRST_UNKNOWN - 1) == ALLOWED


def test_another_machines_calls_kill(machine):
    program = seccomp.build_filter("default", machine)
    assert verdict(program, 0x40000003, 1) == KILLED


def test_x32_calls_kill():
    program = seccomp.build_filter("default", "x86_64")
    assert verdict(program, seccomp.MACHINES["x86_64"].audit_arch, 0x40000000 + 1) == KILLED


def test_an_unknown_machine_is_named():
    with pytest.raises(NotImplementedError, match="riscv64"):
        seccomp.build_filter("default", "riscv64")


def test_the_numbers_are_the_kernels(machine):
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed (package linux-libc-dev)")
    pairs = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    kernel = {name: int(number) for name, number in pairs}
    column = seccomp.MACHINES[machine].column
    named = seccomp.REFUSED | seccomp.ABSENT
    named |= {"clone": seccomp.CLONE, "socket": seccomp.SOCKET, "ioctl": seccomp.IOCTL}
    named |= {"socketpair": seccomp.SOCKETPAIR, "setsockopt": seccomp.SETSOCKOPT}
    wrong = {n: v[column] for n, v in named.items() if v[column] >= 0 and kernel.get(n) != v[column]}
    assert not wrong
