"""Children of a run: addresses, deaths by name, and nothing left behind. The child is a real buffer service."""

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from asyncrl.errors import DeadlineError, UnavailableError
from asyncrl.process_hooks import AUTOGROUP
from tests.waiting import wait_until

START_S = 60.0


def start_buffer(process_group, *options):
    folder = str(process_group.logs.parent)
    return process_group.start("buffer", ["serve", "buffer", "--folder", folder, *options])


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_child_reports_its_address_serves_and_stops(process_group):
    child = start_buffer(process_group)
    url = process_group.wait_ready(child, START_S)
    with urllib.request.urlopen(f"{url}/healthz", timeout=10) as reply:
        assert reply.status == 200
    process_group.stop()
    assert not child.alive()
    assert process_group.processes == []
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/healthz", timeout=10)


def test_a_child_that_lets_others_go_first_does_so_again_after_a_restart(process_group):
    folder = str(process_group.logs.parent)
    child = process_group.start("buffer", ["serve", "buffer", "--folder", folder], nice=3)
    process_group.wait_ready(child, START_S)
    process_group.restart(child)
    process_group.wait_ready(child, START_S)
    assert psutil.Process(child.popen.pid).nice() == psutil.Process().nice() + 3
    if Path(AUTOGROUP).exists():
        assert Path(f"/proc/{child.popen.pid}/autogroup").read_text().endswith("nice 3\n")


def test_a_port_in_use_is_named_with_the_end_of_the_log(process_group):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        child = start_buffer(process_group, "--port", str(port))
        with pytest.raises(UnavailableError) as caught:
            process_group.wait_ready(child, START_S)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"buffer ended with exit code 2: cannot listen on 127.0.0.1:{port}")
    assert first.endswith(f"; see {child.log}")


def test_a_killed_child_is_noticed_and_named_by_its_signal(process_group):
    child = start_buffer(process_group)
    process_group.wait_ready(child, START_S)
    process_group.check()
    child.popen.kill()
    child.popen.wait(10)
    with pytest.raises(UnavailableError, match="buffer was killed by signal 9"):
        process_group.check()


def test_a_child_that_does_not_start_in_time_is_named(process_group):
    child = start_buffer(process_group)
    with pytest.raises(
        DeadlineError,
        match=r"buffer did not start: no progress within run\.start_timeout_s=0\.01 s; see .*buffer\.log",
    ):
        process_group.wait_ready(child, 0.01)


def test_a_child_that_ignores_the_request_to_end_is_killed(process_group, monkeypatch):
    monkeypatch.setattr("asyncrl.launch.processes.process_group.STOP_GRACE_S", 0.5)
    child = start_buffer(process_group)
    process_group.wait_ready(child, START_S)
    child.popen.send_signal(signal.SIGSTOP)
    process_group.stop()
    assert child.popen.returncode == -signal.SIGKILL


ORPHAN = """
import os, sys
from pathlib import Path
from asyncrl.launch.processes.process_group import ProcessGroup
process_group = ProcessGroup(Path(sys.argv[1]))
child = process_group.start("buffer", ["serve", "buffer", "--folder", sys.argv[1]])
process_group.wait_ready(child, 60)
print(child.popen.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_children_die_with_a_launcher_that_is_killed(process_group):
    folder = str(process_group.logs.parent)
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, folder], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    wait_until(lambda: gone(pid), limit_s=60)
