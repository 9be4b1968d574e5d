"""The process that starts all local sandbox programs; they end with it.

One small Python process per event loop of asyncrl. It forks cheaply, holds user ids and session folders, watches
deadlines, memory and disk, reaps orphans, and cleans everything up when asyncrl's end of the socket closes, even if
asyncrl was killed.

    asyncrl (jail.client) --{op: open|listen|clear|close|spawn|kill, id, ...} + descriptors--> launcher
                          <--{id, ...} one answer to each, to spawn when the program has ended--
    launcher --fork, exec--> programs
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from asyncrl.sandbox.jail import channel, kernel, proc, spawn, trace, uids
from asyncrl.sandbox.jail.folders import Folders, Session

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
TICK_S = 0.05
IDLE_MS = 1000.0


@dataclass
class Job:
    """One running program."""

    id: int
    pid: int
    session: int
    kill_signal: int
    error_fd: int
    memory_bytes: int
    memory_files: bool
    """Whether memory in unnamed files counts, too."""
    most_processes: int
    """0 for no limit of the launcher's."""
    deadline: float | None
    """By the monotonic clock."""
    reason: str = ""
    """Why the launcher ended it: timeout, memory, processes, disk or killed."""


class Launcher:
    def __init__(self, sock: socket.socket) -> None:
        # Before the user id is dropped, what this process makes for programs must be readable by them.
        os.umask(0o022)
        self._sock = sock
        self._folders = Folders()
        usable = uids.usable_range()
        self._uids = uids.UidPool(*usable) if usable else None
        self._jobs: dict[int, Job] = {}
        self._sessions: dict[int, Session] = {}
        self._next_tick = 0.0
        self._next_disk_check = 0.0

    # -- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        try:
            while True:
                events = poll.poll(self._wait_ms())
                if any(fd == wake_read for fd, _ in events):
                    os.read(wake_read, 4096)
                self._reap()
                if any(fd == self._sock.fileno() for fd, _ in events):
                    received = channel.receive(self._sock)
                    if received is None:
                        return
                    self._handle(*received)
                self._tick()
        finally:
            self._clean_up()

    def _wait_ms(self) -> float:
        # On busy machines a zombie sometimes stayed until the next message, so look every second in any case.
        return max(0.0, (self._next_tick - time.monotonic()) * 1000) if self._jobs else IDLE_MS

    def _tick(self) -> None:
        now = time.monotonic()
        if not self._jobs or now < self._next_tick:
            return
        for job in self._jobs.values():
            if job.reason:
                continue
            if job.deadline is not None and now > job.deadline:
                self._end(job, "timeout")
            elif proc.holds_more_than(job.pid, job.memory_bytes, job.memory_files):
                self._end(job, "memory")
            elif job.most_processes and len(proc.descendants(job.pid)) > job.most_processes:
                self._end(job, "processes")
        # At most a twentieth of one core, however many programs there are.
        self._next_tick = now + max(TICK_S, 20 * (time.monotonic() - now))
        if not self._folders.mounts and now >= self._next_disk_check:
            self._check_disks()

    def _check_disks(self) -> None:
        """Enforces the quota of sessions in plain folders, at a slower rate: walking over many files takes long."""
        started = time.monotonic()
        for number, session in self._sessions.items():
            jobs = [job for job in self._jobs.values() if job.session == number]
            if jobs and self._folders.over_quota(session):
                for job in jobs:
                    self._end(job, "disk")
        self._next_disk_check = started + max(TICK_S, 20 * (time.monotonic() - started))

    def _end(self, job: Job, reason: str) -> None:
        job.reason = job.reason or reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.pid, job.kill_signal)

    def _reap(self) -> None:
        for pid, status in proc.reap_any().items():
            job = self._jobs.pop(pid, None)
            if job is None:
                continue
            error = ""
            with contextlib.suppress(BlockingIOError):
                error = os.read(job.error_fd, 4096).decode(errors="replace")
            os.close(job.error_fd)
            if job.reason:
                self._end_orphans(job)
            self._answer(job.id, {"status": spawn.exit_code(status), "reason": job.reason, "error": error})

    def _end_orphans(self, job: Job) -> None:
        """A program killed during its start may leave a child that has not yet asked to die with it."""
        session = self._sessions.get(job.session)
        if session is None or session.uid is None:
            return
        for pid in proc.orphans_of_uid(session.uid, self._jobs):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _answer(self, request_id: int, body: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            channel.send(self._sock, {"id": request_id, **body}, fds)

    # -- requests ---------------------------------------------------------------------------------------------

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        try:
            getattr(self, f"_on_{message['op']}")(message, fds)
        except Exception as error:
            self._answer(message["id"], {"failed": f"{type(error).__name__}: {error}"})
        finally:
            for fd in fds:
                os.close(fd)

    def _on_hello(self, message: dict[str, Any], fds: list[int]) -> None:
        body = {
            "mounts": self._folders.mounts,
            "uids": self._uids is not None,
            "base": self._folders.base,
        }
        self._answer(message["id"], body | {"landlock": kernel.landlock_abi(), "traces": trace.available()})

    def _on_open(self, message: dict[str, Any], fds: list[int]) -> None:
        uid = self._uids.take() if self._uids and message["own_uid"] else None
        try:
            if uid is not None:
                self._sweep(uid)
            session = self._folders.open(uid, message["disk_bytes"], message["expose"])
        except BaseException:
            if self._uids and uid is not None:
                self._uids.release(uid)
            raise
        self._sessions[message["session"]] = session
        folder = os.open(f"{session.path}/work", FOLDER_FLAGS)
        body = {"uid": uid, "path": session.path, "exposed": session.exposed}
        self._answer(message["id"], body, (folder,))
        os.close(folder)

    def _on_listen(self, message: dict[str, Any], fds: list[int]) -> None:
        sockets = self._sessions[message["session"]].listen(message["network"], message["ports"])
        self._answer(message["id"], {}, tuple(sockets))
        for fd in sockets:
            os.close(fd)

    def _on_folder(self, message: dict[str, Any], fds: list[int]) -> None:
        folder = os.open(f"{self._sessions[message['session']].path}/{message['name']}", FOLDER_FLAGS)
        self._answer(message["id"], {}, (folder,))
        os.close(folder)

    def _on_spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        session = self._sessions[message["session"]]
        message["uid"] = None if message["keep_user"] else session.uid
        for name, text in message["files"].items():
            os.makedirs(os.path.dirname(f"{session.path}/{name}"), 0o700, exist_ok=True)
            with open(f"{session.path}/{name}", "w") as file:
                file.write(text)
        if message["network"]:
            message["network_fd"] = session.network(message["network"])
        if "{filter}" in message["argv"]:
            fds.append(spawn.filter_file("network" if message["reaches_hosts"] else "default"))
            place = message["argv"].index("{filter}")
            message["argv"][place] = str(len(fds) - 1)
        error_read, error_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        supervised = bool(message["supervise"] or message["judge"])
        pid = os.fork()
        if pid == 0:
            (spawn.supervise if supervised else spawn.run_program)(message, fds, error_write)
        os.close(error_write)
        limit = message.get("timeout_s")
        deadline = None if limit is None else time.monotonic() + limit
        self._jobs[pid] = Job(
            id=message["id"],
            pid=pid,
            session=message["session"],
            kill_signal=signal.SIGTERM if supervised else signal.SIGKILL,
            error_fd=error_read,
            memory_bytes=message["memory_bytes"],
            memory_files=message["memory_files"],
            most_processes=message["most_processes"],
            deadline=deadline,
        )

    def _on_kill(self, message: dict[str, Any], fds: list[int]) -> None:
        for job in self._jobs.values():
            if job.id == message["job"]:
                self._end(job, message.get("reason", "killed"))

    def _on_clear(self, message: dict[str, Any], fds: list[int]) -> None:
        """Empty a session's folder for its next user. Its only program is the warm interpreter."""
        number = message["session"]
        if [job.id for job in self._jobs.values() if job.session == number] != [message["job"]]:
            raise RuntimeError("other programs of the session are running")
        self._folders.clear(self._sessions[number])
        self._answer(message["id"], {})

    def _on_close(self, message: dict[str, Any], fds: list[int]) -> None:
        self._close_session(message["session"])
        self._answer(message["id"], {})

    # -- the end of things ------------------------------------------------------------------------------------

    def _close_session(self, number: int) -> None:
        session = self._sessions.get(number)
        if session is None:
            return
        deadline = time.monotonic() + 5
        while any(j.session == number for j in self._jobs.values()) and time.monotonic() < deadline:
            for job in self._jobs.values():
                if job.session == number:
                    self._end(job, "killed")
            time.sleep(0.001)
            self._reap()
        if session.uid is not None:
            self._sweep(session.uid)
        del self._sessions[number]
        self._folders.close(session)
        if self._uids and session.uid is not None:
            self._uids.release(session.uid)

    def _sweep(self, uid: int) -> None:
        """Kill every process of the uid. Raises `RuntimeError` if one survives for five seconds."""
        deadline = time.monotonic() + 5
        while proc.any_of_uid(uid):
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes of sandbox user {uid} survive SIGKILL")
            proc.kill_uid(uid)
            time.sleep(0.001)
            self._reap()

    def _clean_up(self) -> None:
        for number in list(self._sessions):
            with contextlib.suppress(Exception):
                self._close_session(number)
        proc.kill_descendants(os.getpid())
        self._folders.remove_base()


def main(fd: int) -> None:
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    try:
        launcher = Launcher(sock)
    except Exception as error:
        # Answers the first request, the greeting.
        channel.send(sock, {"id": 1, "failed": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    launcher.run()
