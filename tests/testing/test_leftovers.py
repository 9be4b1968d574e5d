"""What the chaos script looks for after a run: each kind of leftover is found, and nothing else is."""

import asyncio
import subprocess
import sys

import psutil
import pytest

from scripts.testing import leftovers as module

HOLDER = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def leftovers(monkeypatch):
    monkeypatch.setattr(module, "ENDING_S", 5.0)
    return module


@pytest.fixture
def holder():
    """A process that holds a named semaphore, and its resource tracker."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    trackers = psutil.Process(process.pid).children()
    yield process, trackers
    process.kill()
    process.wait(10)
    process.stdout.close()


@pytest.mark.slow
def test_a_semaphore_that_nobody_is_left_to_remove_is_found(leftovers, holder):
    process, trackers = holder
    watch = leftovers.SharedMemory(lambda: [process.pid])
    watch.look()
    for one in (*trackers, process):
        one.kill()
    process.wait(10)
    (name,) = watch.left()
    try:
        assert name.startswith("sem.mp-")
    finally:
        (leftovers.SHARED_MEMORY / name).unlink()
    assert watch.left() == []


def test_a_semaphore_that_its_tracker_removes_is_not_left(leftovers, holder):
    process, _ = holder
    watch = leftovers.SharedMemory(lambda: [process.pid])
    watch.look()
    process.kill()
    process.wait(10)
    assert watch.left() == []


@pytest.mark.slow
def test_a_process_that_names_the_folder_is_left_until_it_ends(leftovers, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path)])
    (found,) = leftovers.processes_left(tmp_path)
    assert found.startswith(f"{process.pid} ")
    process.kill()
    process.wait(10)
    assert leftovers.processes_left(tmp_path) == []


def test_partial_and_temporary_files_and_weights_are_left(leftovers, tmp_path):
    run, weights, temporary = (tmp_path / name for name in ("run", "weights", "tmp"))
    for folder in (run, weights, temporary / "deep"):
        folder.mkdir(parents=True)
    (run / "ledger.sqlite").touch()
    for path in (run / "step.partial", temporary / "deep" / "x"):
        path.touch()
    assert leftovers.files_left(run, weights, temporary) == [
        str(weights),
        str(run / "step.partial"),
        str(temporary / "deep" / "x"),
    ]
    weights.rmdir()
    (run / "step.partial").unlink()
    (temporary / "deep" / "x").unlink()
    assert leftovers.files_left(run, weights, temporary) == []


def test_a_service_that_does_not_answer_has_unknown_sessions(leftovers):
    assert asyncio.run(leftovers.sessions_left("http://127.0.0.1:9", "", 0.1)) == -1
