"""A forked process is, to all who deal with it, one that was started by its command."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap

import psutil
import pytest

from asyncrl import process_start
from asyncrl.process_start import FORK_SERVER, start_child, start_process
from scripts.testing.fork_server import start_fork_server
from tests.waiting import wait_until

ROLES = process_start.FORKED
REPORT = """
import json, os, random, signal, sys, tempfile
import numpy
print(json.dumps({
    "argv": sys.argv[1:], "env": dict(os.environ), "folder": os.getcwd(), "path0": sys.path[0],
    "executable": sys.executable, "name": __name__, "session": os.getsid(0) == os.getpid(), "nice": os.nice(0),
    "input": sys.stdin.read(), "tempdir": tempfile.gettempdir(), "random": [random.random(), numpy.random.rand()],
    "ignored": [int(s) for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN],
    "handled": [int(s) for s in signal.valid_signals() if callable(signal.getsignal(s))],
    "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
    "asyncrl": [name for name in sys.modules if name.startswith("asyncrl")],
    "threads": len(os.listdir("/proc/self/task")),
}), flush=True)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that writes a module and returns the command that runs it."""
    monkeypatch.chdir(tmp_path)
    # The current folder is not searched.
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def write(text, *arguments):
        (tmp_path / "program.py").write_text(textwrap.dedent(text))
        return [sys.executable, "-m", "program", *arguments]

    return write


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of this module's own, which forks any command and imports nothing large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_start, "FORKED", ((),))
        patch.setenv(FORK_SERVER, "")
        folder = tmp_path_factory.mktemp("server")
        process = start_fork_server(folder, ["numpy", "setproctitle"], [])
        wait_until((folder / "fork-server").exists)
        yield process
        process.kill()
        process.wait()


@pytest.fixture
def run(program, server, tmp_path):
    """Return a function that starts a program, by the server or not, with its output in a file, which it returns."""

    def start(text, *arguments, forked=True, env=None, nice=0):
        env = {**os.environ, **(env or {})} if forked else {**os.environ, **(env or {}), FORK_SERVER: ""}
        output = tmp_path / f"output-{forked}"
        with open(output, "wb") as sink:
            return start_process(program(text, *arguments), env, sink.fileno(), nice), output

    return start


@pytest.mark.slow
def test_it_finds_itself_as_one_that_was_started_by_its_command(run, server):
    signal.signal(signal.SIGUSR1, lambda *_: None)
    found = []
    for forked in (True, False):
        process, output = run(
            REPORT, "a", "b c", forked=forked, env={"WORD": "x", "TMPDIR": "/dev/shm"}, nice=2
        )
        assert process.wait(60) == 0
        found.append(json.loads(output.read_text()))
    forked, started = found
    assert forked.pop("random") != started.pop("random")
    assert forked["env"].pop(FORK_SERVER) and not started["env"].pop(FORK_SERVER)
    assert forked == started
    assert (forked["argv"], forked["env"]["WORD"], forked["tempdir"]) == (["a", "b c"], "x", "/dev/shm")
    assert forked["session"] and forked["input"] == "" and forked["open"] == [0, 1, 2]


def test_two_forks_draw_different_numbers(run):
    drawn = []
    for _ in range(2):
        process, output = run(REPORT)
        process.wait(60)
        drawn.append(json.loads(output.read_text())["random"])
    assert not {*drawn[0]} & {*drawn[1]}


@pytest.mark.slow
@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('a reason')", 1, "a reason"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("import atexit; atexit.register(print, 'tidied up')", 0, "tidied up"),
        ("import threading; threading.Timer(0.2, print, ['a thread']).start()", 0, "a thread"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.kill(os.getpid(), 15)", -15, ""),
    ],
)
def test_it_ends_as_one_that_was_started_by_its_command(run, text, code, said, forked):
    process, output = run(text, forked=forked)
    assert process.wait(60) == code == process.returncode == process.poll()
    assert said in output.read_text()
    process.kill()  # Of one that has ended nobody is sent a signal.


def test_it_is_found_by_its_command_and_takes_signals(run):
    process, _ = run("import time; time.sleep(600)", "--folder", "/some/where")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    found = psutil.Process(process.pid)
    wait_until(lambda: "program --folder /some/where" in " ".join(found.cmdline()))
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: found.status() == psutil.STATUS_STOPPED)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)


STARTER = """
import os, sys, time
from asyncrl import process_start
process_start.FORKED = ((),)
with open(os.devnull, "wb") as sink:
    started = process_start.start_process(sys.argv[1:], os.environ, sink.fileno())
print(started.pid, flush=True)
time.sleep(600)
"""


def test_it_dies_with_the_process_that_asked_for_it(program, server):
    command = program("import time; time.sleep(600)")
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *command], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    assert psutil.pid_exists(pid)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not psutil.pid_exists(pid))


def test_it_is_in_the_namespaces_of_the_process_that_asked_for_it(program, server):
    apart = ["unshare", "-m", "-n", "-u"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces are not allowed here")
    command = program("import time; time.sleep(600)")
    starter = subprocess.Popen(
        [*apart, sys.executable, "-c", STARTER, *command], stdout=subprocess.PIPE, text=True
    )
    pid = int(starter.stdout.readline())
    for kind in ("mnt", "net", "uts"):
        theirs = os.readlink(f"/proc/{starter.pid}/ns/{kind}")
        assert theirs != os.readlink(f"/proc/self/ns/{kind}")
        wait_until(lambda kind=kind, theirs=theirs: os.readlink(f"/proc/{pid}/ns/{kind}") == theirs)
    starter.kill()
    starter.wait()
    starter.stdout.close()


def test_each_installation_of_asyncrl_is_imported_once_and_used_by_its_own_processes(
    program, tmp_path, monkeypatch
):
    command = program("import os; from asyncrl import place; print(place.NAME, place.PID != os.getpid())")
    monkeypatch.setattr(process_start, "FORKED", ((),))
    monkeypatch.setenv(FORK_SERVER, "")
    server = start_fork_server(tmp_path, ["setproctitle"], ["asyncrl.place"])
    wait_until((tmp_path / "fork-server").exists)
    said = []
    try:
        for name in ("one", "two", "one"):
            package = tmp_path / name / "asyncrl"
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").touch()
            (package / "place.py").write_text(
                f"import os; NAME, PID = '{name}', os.getpid(); print('imported')"
            )
            shutil.copy(tmp_path / "program.py", tmp_path / name)
            monkeypatch.chdir(tmp_path / name)
            monkeypatch.syspath_prepend(tmp_path / name)
            with open(tmp_path / "output", "wb") as sink:
                assert start_process(command, os.environ, sink.fileno()).wait(60) == 0
            said.append((tmp_path / "output").read_text())
    finally:
        server.kill()
        server.wait()
    assert said == ["one True\n", "two True\n", "one True\n"]
    assert (tmp_path / "fork-server.log").read_text() == "imported\n" * 2


def test_a_nonsensical_request_ends_neither_the_server_nor_others(run, server):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(os.environ[FORK_SERVER])
        client.send(b"nonsense")
    process, _ = run("")
    assert process.wait(60) == 0


PARENT = """
import os, sys, tempfile, types
sys.modules["a_library"] = types.ModuleType("a_library")
from asyncrl.process_start import start_child
with tempfile.TemporaryDirectory() as folder, open(folder + "/file", "w") as file:
    child = start_child([sys.executable, "-m", "program", folder], os.environ | {"WORD": "x"}, "a_library")
    print("parent", child.wait(60), os.path.exists(folder), child.pid != os.getpid(), file.name == folder + "/file")
"""
CHILD = """
import os, sys
print("child", "a_library" in sys.modules, os.environ["WORD"], os.path.exists(sys.argv[1]), os.getppid() != 1,
      len(os.listdir("/proc/self/fd")), [n for n in sys.modules if n.startswith("asyncrl")], flush=True)
sys.exit(5)
"""


def test_a_child_is_forked_where_its_library_was_imported(program):
    program(CHILD)
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["child True x True True 4 []", "parent 5 True True True"], done.stderr


def test_a_child_is_started_by_its_command_otherwise(program):
    command = program("import sys; sys.exit('json' in sys.modules and 'pytest' in sys.modules)")
    assert start_child(command, os.environ, "no_such_library").wait(60) == 0


@pytest.mark.parametrize(
    ("words", "env", "forked"),
    [
        (["asyncrl", "serve", "trainer", "--folder", "x"], {}, True),
        (["asyncrl", "serve", "buffer"], {}, True),
        (["asyncrl", "serve", "old_policy"], {}, True),
        (["asyncrl", "serve", "node"], {}, False),
        (["asyncrl", "train", "x"], {}, True),
        (["asyncrl", "runs"], {}, False),
        (["asyncrl", "serve", "engine"], {"OMP_NUM_THREADS": "2"}, False),
        (["asyncrl", "serve", "engine"], {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, True),
    ],
)
def test_roles_of_runs_are_forked_unless_their_libraries_would_be_imported_otherwise(
    words, env, forked, monkeypatch
):
    monkeypatch.setattr(process_start, "FORKED", ROLES)
    assert process_start._may_be_forked([sys.executable, "-m", *words], env) == forked
