"""The child process that judges: it answers whatever its parent has open."""

import os
import resource
import subprocess
import sys

import pytest

from asyncrl import helper_process
from asyncrl.helper_process import HelperProcess, not_ready
from asyncrl.startup import StartDeadline

ECHO = "print('ready', flush=True)\nfor line in __import__('sys').stdin: print(line.strip(), flush=True)"


def test_it_answers_a_process_with_more_than_a_thousand_files_open():
    """`select` refuses descriptors from 1024 on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip("this machine allows no more than 2048 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    helper = HelperProcess([sys.executable, "-c", ECHO], "the helper did not start")
    try:
        assert helper.ask({"a": 1}, 60.0) == '{"a": 1}'
    finally:
        helper.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("print('ready', flush=True)", ""),
        ("pass", "it ended before it was ready"),
        ("print('hello')", "it printed b'hello'"),
        ("__import__('time').sleep(600)", "it made no progress for 0.5 s"),
    ],
)
def test_a_child_that_does_not_start_is_told_apart_by_what_it_did(written, why):
    child = subprocess.Popen([sys.executable, "-S", "-c", written], stdout=subprocess.PIPE)
    try:
        assert not_ready(child, 0.5 if "sleep" in written else 600.0) == why
    finally:
        child.kill()
        child.communicate()


def test_a_child_that_makes_progress_is_waited_for_however_long_it_takes(monkeypatch):
    """On a loaded machine, imports take minutes."""
    monkeypatch.setattr(StartDeadline, "missed", lambda deadline: "")
    monkeypatch.setattr(helper_process, "LOOK_S", 0.05)
    late = "__import__('time').sleep(0.5); print('ready', flush=True)"
    child = subprocess.Popen([sys.executable, "-S", "-c", late], stdout=subprocess.PIPE)
    assert not_ready(child, 0.1) == ""
    child.communicate()
