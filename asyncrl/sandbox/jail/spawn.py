"""From a fork of the launcher to the program: descriptors, limits, user id, filters, exec. No asyncio, no threads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
from typing import Any, NoReturn

from asyncrl.sandbox.jail import kernel, proc, seccomp, trace

NOT_FOUND, CANNOT_RUN = "not found: ", "cannot run: "
"""Prefixes of errors caused by the session itself, not by the sandbox: no such program; an inaccessible folder, a
file that is not a program, all processes in use."""

RUN = "/run"

_programs: dict[str, bytes] = {}


def filter_program(variant: str) -> bytes:
    if variant not in _programs:
        _programs[variant] = seccomp.build_filter(variant)
    return _programs[variant]


def filter_file(variant: str) -> int:
    """Return the filter as a readable descriptor; a new one each time, since readers share its offset."""
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(fd, filter_program(variant))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _place_descriptors(fds: list[int], keep: int) -> int:
    """Make `fds` descriptors 0, 1, 2 ... of the program; returns where `keep` went."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds]
    keep = fcntl.fcntl(keep, fcntl.F_DUPFD_CLOEXEC, 100)
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=True)
    return keep


class SessionError(Exception):
    """The session's own programs have made it impossible to start another."""


def _become(request: dict[str, Any]) -> None:
    for name, value in request["rlimits"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    if request.get("hide_run"):
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("tmpfs", RUN, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=1777")
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if request.get("landlock"):
        handled, rules = request["landlock"]
        kernel.landlock_restrict(bytes.fromhex(handled), [(access, path) for access, path in rules])
    if request.get("network_fd") is not None:
        kernel.enter_namespace(request["network_fd"])
    uid = request.get("uid")
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if request.get("cwd"):
        # As the sandbox's user: its folder may be a link or inaccessible by now.
        try:
            os.chdir(request["cwd"])
        except OSError as error:
            raise SessionError(f"{request['cwd']}: {error.strerror}") from error
    # After the change of user, which clears it.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if request.get("filter"):
        kernel.install_filter(filter_program(request["filter"]))


def run_program(request: dict[str, Any], fds: list[int], error_fd: int) -> NoReturn:
    """Called in a forked child; becomes the program, or reports the failure on `error_fd`."""
    try:
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        # A container runtime makes folders that its unprivileged user must enter.
        os.umask(0o022 if request["keep_user"] else 0o077)
        error_fd = _place_descriptors(fds, error_fd)
        _become(request)
        try:
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except OSError as error:
            prefix = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
            os.write(error_fd, f"{prefix}{request['argv'][0]}: {error.strerror}".encode())
            os._exit(127)
    except SessionError as error:
        os.write(error_fd, f"{CANNOT_RUN}{error}".encode()[:4000])
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(error_fd, repr(error).encode()[:4000])
    os._exit(126)


def supervise(request: dict[str, Any], fds: list[int], error_fd: int) -> NoReturn:
    """Called in a forked child; runs the program as a child and kills everything it leaves behind.

    Without a pid namespace this is what finds detached processes: as subreaper it inherits them. With `judge` in the
    request, the program is followed by a `trace.Tracer`.
    """
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    tracer = trace.Tracer(request["judge"]) if request.get("judge") else None
    gate_read, gate_write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})
        os.close(gate_write)
        os.read(gate_read, 1)
        run_program(request, fds, error_fd)
    if tracer is not None:
        try:
            tracer.seize(child)
        except OSError:
            # A container may forbid it; then the program under test keeps the judge's rights.
            tracer = None
    os.close(gate_write)
    # Inherited pipe ends would keep readers waiting after the program has ended.
    os.closerange(0, 1024)
    status: int | None = None
    while status is None:
        number = signal.sigwait({signal.SIGCHLD, signal.SIGTERM})
        ended = tracer.reap_any() if tracer else proc.reap_any()
        if child in ended:
            status = ended[child]
        elif number == signal.SIGTERM:
            status = signal.SIGKILL
    proc.kill_descendants(os.getpid())
    os._exit(exit_code(status))


def exit_code(wait_status: int) -> int:
    """Return the exit status as in shells: 128 + signal number for a killed program."""
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)
