"""Children of a run: addresses, deaths by name, and nothing left behind. The child is a real buffer service."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from asyncrl.errors import DeadlineError, UnavailableError
from asyncrl.launch.process_group import Family
from asyncrl.process_hooks import AUTOGROUP

START_S = 60.0


@pytest.fixture
def family(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {"path": "m"}, "env": {"name": "gridworld"}}')
    made = Family(tmp_path)
    yield made
    made.stop()


def start_buffer(family, *options):
    folder = str(family.logs.parent)
    return family.start("buffer", ["serve", "buffer", "--folder", folder, *options])


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_child_reports_its_address_serves_and_stops(family):
    child = start_buffer(family)
    url = family.wait_ready(child, START_S)
    with urllib.request.urlopen(f"{url}/healthz", timeout=10) as reply:
        assert reply.status == 200
    family.stop()
    assert not child.alive()
    assert family.children == []
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/healthz", timeout=10)


def test_a_child_that_lets_others_go_first_does_so_again_after_a_restart(family):
    folder = str(family.logs.parent)
    child = family.start("buffer", ["serve", "buffer", "--folder", folder], nice=3)
    family.wait_ready(child, START_S)
    family.restart(child)
    family.wait_ready(child, START_S)
    assert psutil.Process(child.process.pid).nice() == psutil.Process().nice() + 3
    if Path(AUTOGROUP).exists():
        assert Path(f"/proc/{child.process.pid}/autogroup").read_text().endswith("nice 3\n")


def test_a_port_in_use_is_named_with_the_end_of_the_log(family):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        child = start_buffer(family, "--port", str(port))
        with pytest.raises(UnavailableError) as caught:
            family.wait_ready(child, START_S)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"buffer ended with exit code 2: cannot listen on 127.0.0.1:{port}")
    assert first.endswith(f"; see {child.log}")


def test_a_killed_child_is_noticed_and_named_by_its_signal(family):
    child = start_buffer(family)
    family.wait_ready(child, START_S)
    family.check()
    child.process.kill()
    child.process.wait(10)
    with pytest.raises(UnavailableError, match="buffer was killed by signal 9"):
        family.check()


def test_a_child_that_does_not_start_in_time_is_named(family):
    child = start_buffer(family)
    with pytest.raises(DeadlineError, match=r"buffer did not start within 0\.01 s; see .*buffer\.log"):
        family.wait_ready(child, 0.01)


def test_a_child_that_ignores_the_request_to_end_is_killed(family, monkeypatch):
    monkeypatch.setattr("asyncrl.launch.process_group.STOP_GRACE_S", 0.5)
    child = start_buffer(family)
    family.wait_ready(child, START_S)
    child.process.send_signal(signal.SIGSTOP)
    family.stop()
    assert child.process.returncode == -signal.SIGKILL


ORPHAN = """
import os, sys
from pathlib import Path
from asyncrl.launch.process_group import Family
family = Family(Path(sys.argv[1]))
child = family.start("buffer", ["serve", "buffer", "--folder", sys.argv[1]])
family.wait_ready(child, 60)
print(child.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_children_die_with_a_launcher_that_is_killed(family):
    folder = str(family.logs.parent)
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, folder], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(pid)
