"""Prevents programs under test from writing verdicts, from the moment they start. Standard library only.

A session's judge runs the agent's programs as its own children, under its own user id, so only the command line
distinguishes them. The judge is therefore traced from outside. When one of its processes starts an agent's program
(`judging`), that process is confined by system calls injected before its first instruction: to a Landlock domain that
writes to the session's folders only, and cannot signal or inspect processes outside. Every program below it inherits
that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
from typing import Any

from asyncrl.sandbox.jail import judging, kernel

CONT, GETREGS, SETREGS, GETEVENTMSG, SEIZE, LISTEN = 7, 12, 13, 0x4201, 0x4206, 0x4208
OPTIONS = 0x2 | 0x4 | 0x8 | 0x10 | 0x100000
"""Follow forks, vforks and clones, report exec, and kill traced processes with their tracer."""
EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_STOP = 1, 2, 3, 4, 128
CODE_64_BIT = 0x33
"""Code segment of a process that runs 64-bit code, whose system calls are those below."""
FAULTS = (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGSYS)
"""What an instruction raises each time it is run."""
GROUP_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
ALL_CHILDREN = 0x40000000

REGISTERS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
BREAK, CALL = b"\xcc", b"\x0f\x05\xcc"
"""int3; syscall, int3."""
OPENAT, CLOSE = 257, 3
AT_FDCWD, O_PATH_CLOEXEC = -100, 0o12000000

WRITE_FILE, REFER, TRUNCATE = 1 << 1, 1 << 13, 1 << 14
CHANGE_FOLDERS = 0x1FF0
"""Remove and create entries of a folder."""
SCOPE_SIGNAL = 2
SCRATCH_BYTES = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    """Return whether programs under test can be confined here; the register table is for x86-64."""
    return platform.machine() == "x86_64" and kernel.landlock_abi() > 0


def _ptrace(request: int, pid: int, address: int = 0, data: Any = 0) -> None:
    argument = data if isinstance(data, ctypes.Array) else ctypes.c_void_p(data)
    if _libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), argument) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace({request:#x}): {os.strerror(code)}")


class _Gone(Exception):
    """The process has ended meanwhile; carries its wait status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Tracer:
    """Follows one process and everything below it."""

    def __init__(self, judge: dict[str, Any]) -> None:
        self._places = judging.Places(judge["tests"], judge["logs"], tuple(judge["writable"]))
        self._confined: set[int] = set()
        self._begun = False

    def seize(self, pid: int) -> None:
        """Follow a child from here on. Raises `OSError` where that is forbidden."""
        _ptrace(SEIZE, pid, 0, OPTIONS)

    def reap_any(self) -> dict[int, int]:
        """Return the wait status of every child that has ended; stopped processes are handled and continued."""
        ended: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | ALL_CHILDREN)
            except ChildProcessError:
                return ended
            if not pid:
                return ended
            if os.WIFSTOPPED(status):
                try:
                    self._on_stop(pid, os.WSTOPSIG(status), status >> 16)
                    continue
                except OSError:
                    # Killed while it was stopped: its end comes next.
                    continue
                except _Gone as gone:
                    status = gone.status
            ended[pid] = status
            self._confined.discard(pid)

    def _on_stop(self, pid: int, number: int, event: int) -> None:
        if event == EVENT_STOP and number in GROUP_STOPS:
            _ptrace(LISTEN, pid)
            return
        if event in (EVENT_FORK, EVENT_VFORK, EVENT_CLONE) and pid in self._confined:
            message = (ctypes.c_ulong * 1)()
            _ptrace(GETEVENTMSG, pid, 0, message)
            self._confined.add(message[0])
        deliver = 0 if event else number
        # The first program is the jail itself, whose options name all kinds of folders.
        free = self._begun and pid not in self._confined
        if event == EVENT_EXEC and free and not judging.is_judges(pid, self._places):
            self._confined.add(pid)
            deliver = self._confine(pid)
        self._begun = self._begun or event == EVENT_EXEC
        _ptrace(CONT, pid, 0, deliver)

    def _confine(self, pid: int) -> int:
        """Confine a process that is about to start its program. Return a signal that it must still get."""
        process = _Inside(pid)
        try:
            process.enter()
            abi = kernel.landlock_abi()
            rights = WRITE_FILE | CHANGE_FOLDERS | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0)
            attribute = (
                struct.pack("=QQQ", rights, 0, SCOPE_SIGNAL) if abi >= 6 else struct.pack("=Q", rights)
            )
            ruleset = process.call(kernel.LANDLOCK_CREATE, attribute, len(attribute), 0)
            allowed = [(rights, path) for path in self._places.writable]
            for access, path in [*allowed, (WRITE_FILE, "/dev"), (WRITE_FILE, "/proc")]:
                folder = process.call(OPENAT, AT_FDCWD, path.encode() + b"\0", O_PATH_CLOEXEC, 0)
                if folder >= 0:
                    process.call(kernel.LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", access, folder), 0)
                    process.call(CLOSE, folder)
            confined = process.call(kernel.LANDLOCK_RESTRICT, ruleset, 0)
            process.call(CLOSE, ruleset)
            process.leave()
        except OSError:
            confined = -1
        finally:
            process.close()
        if confined < 0:
            # Rather no program under test than one that writes its own verdict.
            os.kill(pid, signal.SIGKILL)
        return process.pending


class _Inside:
    """Injects system calls into a stopped process that has just been given a new program."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self.pending = 0
        """A signal that arrived meanwhile."""

    def enter(self) -> None:
        """Let it reach its first instruction: until then, the end of exec overwrites a register."""
        registers = self._registers()
        if registers["cs"] != CODE_64_BIT:
            raise OSError(errno.ENOEXEC, "not a 64-bit program")
        self._start = registers["rip"]
        self._code = os.pread(self._memory, len(CALL), self._start)
        os.pwrite(self._memory, BREAK, self._start)
        self._go()
        self._saved = self._registers() | {"rip": self._start}
        self._scratch = (self._saved["rsp"] - 2 * SCRATCH_BYTES) & ~0xF
        os.pwrite(self._memory, CALL, self._start)

    def call(self, number: int, *arguments: int | bytes) -> int:
        """Make one call; bytes are passed by address. Return its result, negative for an error."""
        place, values = self._scratch, []
        for argument in arguments:
            if isinstance(argument, bytes):
                os.pwrite(self._memory, argument, place)
                values.append(place)
                place += (len(argument) + 15) & ~0xF
            else:
                values.append(argument & (1 << 64) - 1)
        names = ARGUMENTS[: len(values)]
        self._set(self._saved | {"rax": number} | dict(zip(names, values, strict=True)))
        self._go()
        result = self._registers()["rax"]
        return result - (1 << 64) if result >> 63 else result

    def leave(self) -> None:
        """Restore everything."""
        os.pwrite(self._memory, self._code, self._start)
        self._set(self._saved)

    def close(self) -> None:
        os.close(self._memory)

    def _go(self) -> None:
        """Continue to the next break instruction."""
        _ptrace(CONT, self._pid)
        while True:
            _, status = os.waitpid(self._pid, ALL_CHILDREN)
            if not os.WIFSTOPPED(status):
                raise _Gone(status)
            if status >> 16 == 0 and os.WSTOPSIG(status) == signal.SIGTRAP:
                return
            if status >> 16 == 0:
                if os.WSTOPSIG(status) in FAULTS:
                    raise OSError(errno.EFAULT, "the system calls cannot be made")
                self.pending = os.WSTOPSIG(status)
            _ptrace(CONT, self._pid)

    def _registers(self) -> dict[str, int]:
        values = (ctypes.c_uint64 * len(REGISTERS))()
        _ptrace(GETREGS, self._pid, 0, values)
        return dict(zip(REGISTERS, values, strict=True))

    def _set(self, registers: dict[str, int]) -> None:
        values = (ctypes.c_uint64 * len(REGISTERS))(*(registers[name] for name in REGISTERS))
        _ptrace(SETREGS, self._pid, 0, values)
