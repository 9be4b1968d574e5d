"""A start fails after a time without progress, however slow the machine is, and in the end after several such times."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from asyncrl.startup import KEY, LIMIT_FACTOR, WAITING_SHARE, ProcessMeter, StartDeadline, waited_s
from tests.waiting import wait_until

NO_PROGRESS = f"did not start: no progress within {KEY}=10 s"
BUSY = """
import time
while time.process_time() < 1.5:
    pass
print("done", flush=True)
time.sleep(600)
"""
MOVING = """
import socket, sys, threading
far, near = socket.socketpair()
for _ in sys.stdin:
    threading.Thread(target=far.sendall, args=(bytes(2**21),), daemon=True).start()
    with open(sys.argv[1], "wb", buffering=0) as file:
        file.write(near.recv(2**21, socket.MSG_WAITALL))
    print("moved", flush=True)
"""
IDLE = "import time; print('idle', flush=True); time.sleep(600)"


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = [100.0]
    monkeypatch.setattr("asyncrl.startup.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def started():
    """Starts Python code in a process that is ended after the test."""
    processes = []

    def start(code, *arguments):
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_process_that_does_nothing_fails_after_its_timeout(started, clock):
    process = started(IDLE)
    assert process.stdout.readline() == "idle\n"
    deadline = StartDeadline(process.pid, 10.0)
    clock[0] += 9.9
    assert deadline.missed() == ""
    clock[0] += 0.2
    assert deadline.missed() == NO_PROGRESS


@pytest.mark.slow
def test_cpu_time_is_progress(started, clock):
    process = started(BUSY)
    deadline = StartDeadline(process.pid, 10.0)
    assert process.stdout.readline() == "done\n"
    clock[0] += 9.0
    assert deadline.missed() == ""
    clock[0] += 9.0
    assert deadline.missed() == "", "9 s after its progress was seen"
    clock[0] += 1.5
    assert deadline.missed() == NO_PROGRESS


@pytest.mark.slow
def test_cpu_time_of_descendants_is_progress(started, clock):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    process = started(code)
    deadline = StartDeadline(process.pid, 10.0)
    assert process.stdout.readline() == "done\n"
    clock[0] += 9.0
    assert deadline.missed() == ""
    clock[0] += 9.0
    assert deadline.missed() == ""


def test_data_that_moves_is_progress_however_long_it_takes(started, clock, tmp_path):
    """A download, 2 MiB from a socket to a file every 9 s."""
    process = started(MOVING, str(tmp_path / "model.safetensors"))
    deadline = StartDeadline(process.pid, 10.0)
    for _ in range(2 * LIMIT_FACTOR):
        process.stdin.write("more\n")
        process.stdin.flush()
        assert process.stdout.readline() == "moved\n"
        clock[0] += 9.0
        assert deadline.missed() == ""
    clock[0] += 10.1
    assert deadline.missed() == NO_PROGRESS


def test_output_is_progress_up_to_a_limit(started, clock, tmp_path):
    log = tmp_path / "role.log"
    deadline = StartDeadline(started(IDLE).pid, 10.0, log)
    while clock[0] < 100 + LIMIT_FACTOR * 10 - 9:
        clock[0] += 9.0
        with log.open("a") as file:
            file.write("loading\n")
        assert deadline.missed() == ""
    clock[0] = 100 + LIMIT_FACTOR * 10 + 0.1
    assert deadline.missed() == f"did not start within {LIMIT_FACTOR} times {KEY}=10 s"


def test_a_pause_of_the_observer_is_no_time_of_the_process(started, clock):
    deadline = StartDeadline(started(IDLE).pid, 10.0)
    clock[0] += 3600.0
    deadline.restart()
    assert deadline.missed() == ""
    clock[0] += 9.9
    assert deadline.missed() == ""


def test_a_process_that_waits_for_a_processor_makes_progress_and_one_that_sleeps_does_not():
    core = {min(os.sched_getaffinity(0))}
    asleep = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    )
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        assert asleep.stdout.readline()
        for one in (asleep, *crowd):
            os.sched_setaffinity(one.pid, core)
        before = waited_s(asleep.pid)
        wait_until(lambda: all(waited_s(one.pid) > 3.0 for one in crowd))
        assert waited_s(asleep.pid) - before < 0.5
        used = psutil.Process(crowd[0].pid).cpu_times()
        assert ProcessMeter(crowd[0].pid).cpu_s() >= used.user + used.system + 3.0 * WAITING_SHARE
    finally:
        for one in (asleep, *crowd):
            one.kill()
            one.wait()
        asleep.stdout.close()
    assert waited_s(crowd[0].pid) == 0.0
