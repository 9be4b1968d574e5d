"""The warm interpreter: runs inside bubblewrap and forks a jailed child for every piece of code.

    asyncrl (sandbox.zygote) --{op: run|kill} + descriptors [code, stdin, stdout, stderr]--> zygote
        zygote -fork-> job: init of a pid namespace, makes the other namespaces, gives up everything, runs the code

The zygote has its own user namespace below bubblewrap's, where it may make the namespaces of each job; a job ends up
in a user namespace below that, without any capability. The zygote never reads what a job wrote. Standard library
only; it must stay single-threaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import io
import json
import linecache
import os
import resource
import select
import signal
import site
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from asyncrl.sandbox.jail import channel, kernel

FILE = "main.py"
CANNOT_RUN = "cannot run: "
"""As in `spawn`, which is not available inside."""
ERROR_FD, HIGH_FD = 3, 1000
"""Descriptor on which a job reports that it could not be set up, and the first one used until 0, 1 and 2 are free."""


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, text.encode())
    os.close(fd)


def _enter_user_namespace(flags: int = 0) -> None:
    """A new user namespace in which the caller keeps its ids and has every capability."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER | flags)
    # Missing where /proc had to be hidden: then the ids stay unmapped, which does not affect the job.
    with contextlib.suppress(FileNotFoundError):
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _become_init() -> None:
    """Continue as the init of a pid namespace that the zygote itself owns, so that it can make and leave others."""
    _enter_user_namespace(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        os._exit(1 if status else 0)


def _mount_private(disk_bytes: int) -> None:
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    for target in ("/tmp", "/dev/shm"):
        kernel.mount(
            "tmpfs", target, "tmpfs", flags, f"size={disk_bytes // 4},nr_inodes=8192,mode=0700,uid=1000"
        )
    try:
        kernel.mount("proc", "/proc", "proc", flags | kernel.MS_NOEXEC)
    except OSError:
        # If the kernel refuses a new one: an empty folder instead of a view of the zygote.
        kernel.mount("tmpfs", "/proc", "tmpfs", flags | kernel.MS_RDONLY, "size=4k")


def _confine(config: dict[str, Any]) -> None:
    """Turn a copy of the zygote into a process without rights outside."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC)
    _mount_private(config["disk_bytes"])
    _enter_user_namespace()
    for name, value in config["rlimits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities()
    kernel.install_filter(bytes.fromhex(config["filter"]))


def _take_descriptors(fds: list[int], error_fd: int) -> str:
    """Use them as the job's stdin, stdout and stderr, and `error_fd` as 3; close all others. Return the code."""
    with os.fdopen(fds[0], "rb") as file:
        code = file.read().decode("utf-8", "surrogatepass")
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD) for fd in fds[1:]]
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=True)
    os.dup2(error_fd, ERROR_FD, inheritable=False)
    os.closerange(ERROR_FD + 1, 65536)
    return code


def _run_code(code: str, request: dict[str, Any]) -> int:
    """Return the exit status that a fresh interpreter would give for this code."""
    os.environ.clear()
    os.environ.update(request["env"])
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        os.write(2, f"{CANNOT_RUN}{request['cwd']}: {error.strerror}".encode())
        return 126
    sys.argv = [FILE]
    sys.path.insert(0, request["cwd"])
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = io.open(fd, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: UP020, SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    main = type(sys)("__main__")
    main.__file__ = FILE
    sys.modules["__main__"] = main
    status = 0
    try:
        exec(compile(code, FILE, "exec"), main.__dict__)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            status = ended.code & 0xFF
        elif ended.code is not None:
            status = 1
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace and trace.tb_next)
    return status


def _finish(status: int) -> NoReturn:
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        importlib.import_module("atexit")._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


def _job(request: dict[str, Any], fds: list[int], config: dict[str, Any], error_fd: int) -> NoReturn:
    error_fd = fcntl.fcntl(error_fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    try:
        # Not in the zygote's process group: a signal to the own group crosses pid namespaces.
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = _take_descriptors(fds, error_fd)
        error_fd = ERROR_FD
        _confine(config)
    except BaseException as error:
        os.write(error_fd, repr(error).encode()[:1000])
        os._exit(126)
    os.close(error_fd)
    _finish(_run_code(code, request))


class Zygote:
    def __init__(self, sock: socket.socket, config: dict[str, Any]) -> None:
        self._sock, self._config = sock, config
        self._jobs: dict[int, tuple[int, int]] = {}
        """Pid -> (request id, error descriptor)."""
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def run(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                    continue
                received = channel.receive(self._sock)
                if received is None:
                    return
                self._handle(*received)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == "kill":
            for pid, (number, _) in self._jobs.items():
                if number == message["job"]:
                    # When its init ends, every process in a pid namespace ends.
                    os.kill(pid, signal.SIGKILL)
        elif message["op"] == "hello":
            channel.send(self._sock, {"id": message["id"]})
        else:
            self._fork(message, fds)
        for fd in fds:
            os.close(fd)

    def _fork(self, message: dict[str, Any], fds: list[int]) -> None:
        error_read, error_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The next child becomes the new namespace's init; then back, or the zygote could make only one.
        kernel.unshare(kernel.CLONE_NEWPID)
        refused = ""
        try:
            pid = os.fork()
        except OSError as error:
            # The session's other jobs use all its allowed processes.
            pid, refused = -1, f"{CANNOT_RUN}{error.strerror}"
        if pid == 0:
            _job(message, fds, self._config, error_write)
        kernel.enter_namespace(self._own_pids)
        os.close(error_write)
        if refused:
            os.close(error_read)
            channel.send(self._sock, {"id": message["id"], "status": 126, "reason": "", "error": refused})
            return
        self._jobs[pid] = (message["id"], error_read)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                number, error_fd = self._jobs.pop(pid)
                error = os.read(error_fd, 1000).decode(errors="replace")
                os.close(error_fd)
                code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                body = {"id": number, "status": code, "reason": "", "error": error}
                channel.send(self._sock, body)


def main() -> None:
    config = json.loads(sys.argv[1])
    sock = socket.socket(fileno=config["socket_fd"])
    sock.set_inheritable(False)
    sys.path[:0] = config["path"]
    for name in config["preload"]:
        importlib.import_module(name)
    importlib.import_module("encodings.utf_8")
    importlib.import_module("atexit")
    # exit(), quit() and help(), which an interpreter without site lacks.
    site.setquit()
    site.setcopyright()
    site.sethelper()
    _become_init()
    Zygote(sock, config).run()
