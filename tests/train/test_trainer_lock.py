"""Trainers of several processes that want the same GPUs: one has them at a time."""

import subprocess
import sys
import time

import pytest

from asyncrl.train.trainer_lock import TrainerLock

OTHER = """
import sys
from pathlib import Path
from asyncrl.train.trainer_lock import TrainerLock

lock = TrainerLock(Path(sys.argv[1]), 0, "keepers")
for line in sys.stdin:
    if line.strip() == "release":
        lock.release()
        print("released", flush=True)
    else:
        print(lock.acquire(float(line)), flush=True)
"""


class Other:
    """Another trainer, in a process of its own."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def asked(self, line):
        self.tell(line)
        return self.answer()


@pytest.fixture
def other(tmp_path):
    made = Other(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_one_trainer_has_the_right_until_it_gives_it_back(tmp_path, other):
    lock = TrainerLock(tmp_path, 0, "main")
    assert other.asked(5) == "True"
    assert not lock.acquire(0.05)
    assert lock.holder() == "keepers"
    assert other.asked("release") == "released"
    assert lock.acquire(5)
    assert lock.holder() == "main"
    assert other.asked(0.05) == "False"


def test_ranks_of_other_numbers_have_other_gpus(tmp_path, other):
    assert other.asked(5) == "True"
    assert TrainerLock(tmp_path, 1, "main").acquire(5)


def test_a_trainer_that_is_killed_gives_it_back(tmp_path, other):
    assert other.asked(5) == "True"
    other.process.kill()
    assert TrainerLock(tmp_path, 0, "main").acquire(5)


def test_who_waits_comes_before_who_has_just_given_it_back(tmp_path, other):
    lock = TrainerLock(tmp_path, 0, "main")
    assert lock.acquire(5)
    other.tell(30)
    deadline = time.monotonic() + 30
    while not _is_taken(tmp_path / "training-0.next"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.release()
    assert not lock.acquire(0.0)
    assert other.answer() == "True"


def _is_taken(path):
    """True while another process has this file locked, by what the kernel lists."""
    number = f":{path.stat().st_ino} " if path.exists() else None
    with open("/proc/locks") as file:
        return number is not None and any(number in line for line in file)
