"""Faults that go away again: what they do to a process, and that it has everything back afterwards."""

import subprocess
import sys
import types

import psutil
import pytest

from asyncrl.config import parse_config
from scripts.testing.faults import Network
from scripts.testing.lent_faults import LendingMonkey, _begin
from tests.waiting import wait_until

PROGRAM = """
import sys, tempfile
with tempfile.TemporaryFile("w") as file:
    for what in sys.stdin:
        try:
            if what.strip() == "open":
                open("/dev/null").close()
            else:
                file.write("x")
                file.flush()
            print("done", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
"""


@pytest.fixture
def child():
    made = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield made
    made.kill()
    made.wait()


def ask(child, what):
    child.stdin.write(what + "\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


@pytest.mark.parametrize(
    ("kind", "what", "error"),
    [("EMFILE", "open", "Too many open files"), ("no disk", "write", "File too large")],
)
def test_a_process_lacks_what_was_taken_until_it_is_given_back(child, kind, what, error):
    assert ask(child, what) == "done"
    take_back = _begin(psutil.Process(child.pid), kind)
    assert ask(child, what) == error
    take_back()
    assert ask(child, "open") == "done"


def test_a_suspended_process_goes_on(child):
    process = psutil.Process(child.pid)
    take_back = _begin(process, "SIGSTOP")
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    take_back()
    assert ask(child, "open") == "done"


def test_each_fault_of_the_plan_is_for_every_role(tmp_path):
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})
    roles = types.SimpleNamespace(config=config, folder=tmp_path)
    network = Network()
    try:
        monkey = LendingMonkey(roles, network, 0, 0, plan=[("SIGSTOP", 10.0), ("EMFILE", 8.0)])
        network.route("rollout", "engine-0", "http://127.0.0.1:9")
        network.route("rollout", "buffer", "http://127.0.0.1:9")
        assert monkey._part(0.0, "engine")
        assert not monkey._part(0.0, "trainer")
    finally:
        network.close()
    made = {(kind, role) for kind, _, role in monkey._left}
    assert {kind for kind, _ in made} == {"SIGSTOP", "EMFILE"}
    assert {role for kind, role in made if kind == "EMFILE"} >= {
        "buffer",
        "engine",
        "vllm",
        "rollout",
        "trainer",
    }
    assert monkey.kills == len(made)
    (fault,) = monkey.faults
    assert (fault.role, fault.kind, fault.detail) == ("engine", "partition", "for 0 s, of 1 links")
