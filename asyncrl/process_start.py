"""How a process of a run is started: by its command, or forked by a server that has imported its libraries already.

Most of a role's start is the import of torch, transformers, DeepSpeed and vLLM. Where the variable `FORK_SERVER` names
the socket of a `scripts/testing/fork_server.py`, as in tests, the roles that import these are forked from it. They have
the command line, environment, folder, output, session, priority, signals and exit code of processes started by their
commands. Only their parent is the server: it kills a process whose starter has ended, and tells how it ended.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from asyncrl.process_hooks import die_with_parent, lower_priority

FORK_SERVER = "ASYNCRL_FORK_SERVER"
"""Environment variable that names the server's socket; unset, as outside of tests, every process is started anew."""
IMPORTED_WITH = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Variables that libraries read while they are imported, and their values in the server. A process with other values is
not forked. Without the first, Arrow's memory pool starts a thread."""
FORKED = (
    ("asyncrl", "eval"),
    ("asyncrl", "models", "convert"),
    ("asyncrl", "plan"),
    ("asyncrl", "sft"),
    ("asyncrl", "train"),
    ("asyncrl", "serve", "buffer"),
    ("asyncrl", "serve", "engine"),
    ("asyncrl", "serve", "env"),
    ("asyncrl", "serve", "judge_engine"),
    ("asyncrl", "serve", "old_policy"),
    ("asyncrl", "serve", "policy"),
    ("asyncrl", "serve", "reward_model"),
    ("asyncrl", "serve", "rollout"),
    ("asyncrl", "serve", "trainer"),
    ("asyncrl.chat.check_parsers",),
)
"""The beginnings of the commands that are forked, after `python -m`."""
ANSWER_S = 600.0
"""The server imports the libraries when it is asked for the first time."""
MAX_MESSAGE = 2**17
POLL_S = 0.02
FROM_SERVER: set[str] = set()
"""The modules of asyncrl that the server had imported when it forked this process."""
_LEFT: list[object] = []
"""What a forked process leaves behind, kept so that it is not taken apart."""


SAFE_PATH = "PYTHONSAFEPATH"
SAFE = "asyncrl"
"""With this variable `python -m` does not search modules in the current folder, where a user's `token.py` would be what
the standard library imports. The value tells it from a user's own."""


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of this package. Where it is the current one, the package need not be installed."""


def without_folder(env: Mapping[str, str]) -> dict[str, str]:
    """Return a child's environment with which the current folder is not searched before the installed packages."""
    found = {SAFE_PATH: SAFE, **env}
    listed = found.get("PYTHONPATH", "")
    if os.getcwd() == _ROOT and _ROOT not in listed.split(os.pathsep):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [listed, _ROOT]))
    return found


@contextlib.contextmanager
def children_without_folder() -> Iterator[None]:
    """Have the processes that a library starts with this one's environment, such as torchrun its ranks, be started as
    `without_folder` says."""
    added = {name: text for name, text in without_folder(os.environ).items() if os.environ.get(name) != text}
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def python_module(module: str) -> list[str]:
    """Return the command of a module for a process whose environment is another's, as `without_folder`."""
    return [sys.executable, *(() if os.getcwd() == _ROOT else ("-P",)), "-m", module]


def leave_safe_path() -> None:
    """Have processes that this one starts find modules as Python does: a script those that lie beside it."""
    if os.environ.get(SAFE_PATH) == SAFE:
        del os.environ[SAFE_PATH]


class Process(Protocol):
    """A started process, with the meaning of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class ForkedProcess:
    """A forked process. `ended` returns its exit code once it has one."""

    def __init__(self, pid: int, ended: Callable[[], int | None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                self.returncode = self._ended()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_process(
    command: Sequence[str],
    env: Mapping[str, str],
    output: int | None = None,
    nice: int = 0,
    errors: int | None = None,
) -> Process:
    """Start a process that dies with this thread.

    output: a file descriptor. With it the process gets a session of its own and no input; otherwise it shares input,
    output and session with this process. errors: another one for its errors, which else are part of the output. nice:
    its niceness, added to that of this process.
    """
    env = without_folder(env)
    if env.get(FORK_SERVER) and _may_be_forked(command, env):
        return _ask_server(command, env, output, nice, errors)

    def before() -> None:
        die_with_parent()
        if nice:
            lower_priority(nice)

    return subprocess.Popen(
        command,
        stdin=None if output is None else subprocess.DEVNULL,
        stdout=output,
        stderr=output if errors is None else errors,
        env=dict(env),
        start_new_session=output is not None,
        preexec_fn=before,
    )


def run_process(
    command: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as `start_process` starts it; return its exit code, output and errors.

    Raises `subprocess.TimeoutExpired` when it takes longer, and kills it.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = start_process(command, env, output.fileno(), errors=errors.fileno())
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(), errors.read())


def start_child(command: Sequence[str], env: Mapping[str, str], library: str) -> Process:
    """Start a process that dies with this one and shares its session, input and output.

    library: what takes long to import. If this process was forked with it, so is the child.
    """
    env = without_folder(env)
    if library in sys.modules and threading.active_count() == 1 and _imports_alike(env):
        return _fork_here(command, env)
    return subprocess.Popen(command, env=dict(env), preexec_fn=die_with_parent)


def _may_be_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    words = tuple(command[2:])
    is_role = any(words[: len(beginning)] == beginning for beginning in FORKED)
    return is_role and tuple(command[:2]) == (sys.executable, "-m") and _imports_alike(env)


def _imports_alike(env: Mapping[str, str]) -> bool:
    return all(env.get(name, value) == value for name, value in IMPORTED_WITH.items())


def _ask_server(
    command: Sequence[str], env: Mapping[str, str], output: int | None, nice: int, errors: int | None
) -> ForkedProcess:
    request = {
        "command": list(command),
        "env": dict(env),
        "folder": os.getcwd(),
        "path": [entry for entry in sys.path if entry],
        "prefixes": [sys.prefix, sys.exec_prefix],
        "own_session": output is not None,
        "base_nice": os.nice(0),
        "nice": nice,
    }
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.settimeout(ANSWER_S)
    server.connect(env[FORK_SERVER])
    with open(os.devnull, "rb") as nothing:
        fds = (
            [0, 1, 2] if output is None else [nothing.fileno(), output, output if errors is None else errors]
        )
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        server.sendmsg([json.dumps(request).encode()], [rights])
    answer = server.recv(MAX_MESSAGE)
    if not answer:
        raise ConnectionError(f"{FORK_SERVER}: the server at {env[FORK_SERVER]} has ended")
    server.settimeout(0)

    def ended() -> int | None:
        try:
            code = server.recv(MAX_MESSAGE)
        except BlockingIOError:
            return None
        except ConnectionError:
            code = b""
        server.close()
        # Its processes die with the server.
        return json.loads(code)["code"] if code else -signal.SIGKILL

    return ForkedProcess(json.loads(answer)["pid"], ended)


def _fork_here(command: Sequence[str], env: Mapping[str, str]) -> ForkedProcess:
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():

        def ended() -> int | None:
            found, status = os.waitpid(pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if found else None

        return ForkedProcess(pid, ended)
    die_with_parent()
    # Modules that this process has imported may hold what it did; those of the server have done nothing.
    forget_asyncrl(FROM_SERVER)
    run_forked(command, env)


def run_forked(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Be `python -m MODULE ARGUMENT...` from here on, in a process that has just been forked; never returns."""
    code = 1
    try:
        _forget_parent()
        # First: where the kernel finds the command is found by the environment.
        _show(command)
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        _, _, module, *arguments = command
        sys.argv = ["-m", *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def asyncrl_modules() -> list[str]:
    """Return the names of the imported modules of asyncrl."""
    return [name for name in sys.modules if name.partition(".")[0] == "asyncrl"]


def forget_asyncrl(but: Container[str] = ()) -> None:
    """Have the next import of a module of asyncrl load it anew. but: those that stay."""
    for name in asyncrl_modules():
        if name not in but:
            del sys.modules[name]


def _forget_parent() -> None:
    """Leave behind what a new program does not have: handlers of signals, open files, what is tidied up at the end."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What was made before is never taken apart, so that no file that is closed here is closed once more.
    gc.freeze()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and not os.get_inheritable(int(name)):
                os.close(int(name))
    # Nor at the end: folders are the parent's, and torch would unregister hundreds of operators.
    _LEFT.append(getattr(weakref.finalize, "_registry"))  # noqa: B009
    setattr(weakref.finalize, "_registry", {})  # noqa: B010
    if "numpy" in sys.modules:
        # Else all forks would draw the same numbers; Python's own generator is seeded again by itself.
        sys.modules["numpy"].random.seed()


def _show(command: Sequence[str]) -> None:
    """Have the system show the command as this process's."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(" ".join(command))


def _end(code: int) -> NoReturn:
    """End as an interpreter does, but for taking apart what was imported."""
    with contextlib.suppress(BaseException):
        getattr(threading, "_shutdown")()  # noqa: B009
        getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)
