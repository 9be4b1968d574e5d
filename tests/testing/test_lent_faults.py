"""Faults that go away again: what they do to a process, and that it has everything back afterwards."""

import json
import os
import subprocess
import sys
import types

import psutil
import pytest

from asyncrl.config import parse_config
from scripts.testing.faults import Network
from scripts.testing.lent_faults import LendingMonkey, Lent, _begin
from scripts.testing.set_clock import SOURCE
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
        monkey = LendingMonkey(
            roles, network, 0, 0, plan=[(kind, 8.0) for kind in ("SIGSTOP", "EMFILE", "partition")]
        )
        network.route("rollout", "engine-0", "http://127.0.0.1:9")
        network.route("rollout", "buffer", "http://127.0.0.1:9")
        assert monkey._part(0.0, "engine")
        assert not monkey._part(0.0, "trainer")
    finally:
        network.close()
    made = {(kind, role) for kind, _, role in monkey._left}
    assert {kind for kind, _ in made} == {"SIGSTOP", "EMFILE", "partition"}
    assert {role for kind, role in made if kind == "EMFILE"} >= {
        "buffer",
        "engine",
        "vllm",
        "rollout",
        "trainer",
    }
    # vLLM's own process is called by the engine's alone.
    assert {role for kind, role in made if kind == "partition"} == {"buffer", "engine", "rollout", "trainer"}
    assert monkey.kills == len(made)
    (fault,) = monkey.faults
    assert (fault.role, fault.kind, fault.detail) == ("engine", "partition", "for 0 s, of 1 links")


FILES = (
    "ended with exit code 1",
    "RuntimeError: unable to open file </w> in read-only mode: Too many open files (24)",
)
DISK = (
    "ended with exit code 1",
    "http://127.0.0.1:1/v1/commit: ledger /l.sqlite: disk I/O error; nothing was changed",
)


@pytest.mark.parametrize(
    ("fault", "deaths", "expected"),
    [
        (("SIGSTOP", "engine", 90.0), [("engine-0", 1061.0)], ([], [])),
        (("SIGSTOP", "vllm", 90.0), [("engine-0", 1061.0)], ([], [])),
        (("SIGSTOP", "env", 90.0), [], ([], ["env"])),
        # vLLM's own process answers meanwhile.
        (("SIGSTOP", "engine", 90.0), [], ([], [])),
        (("SIGSTOP", "engine", 30.0), [("engine-0", 1020.0)], (["engine-0"], [])),
        (("SIGSTOP", "engine", 90.0), [("buffer", 1061.0), ("engine-0", 1061.0)], (["buffer"], [])),
        (("SIGSTOP", "env", 90.0), [("env-0", 1200.0)], (["env-0"], ["env"])),
        (("EMFILE", "engine", 8.0), [], ([], [])),
        (("EMFILE", "engine", 8.0), [("engine-0", 1004.0)], (["engine-0"], [])),
        (("EMFILE", "trainer", 8.0), [("trainer", 1004.0, FILES)], ([], [])),
        # The buffer answered that it cannot write.
        (("no disk", "buffer", 8.0), [("trainer", 1100.0, DISK)], ([], [])),
        (("no disk", "buffer", 8.0), [("trainer", 990.0, DISK)], (["trainer"], [])),
        (("no disk", "buffer", 8.0), [("trainer", 1004.0, FILES)], (["trainer"], [])),
        (("partition", "trainer", 8.0), [("trainer", 1004.0, DISK)], (["trainer"], [])),
    ],
)
def test_a_restart_is_due_to_what_was_suspended_for_longer_than_its_limit_or_had_no_files(
    tmp_path, fault, deaths, expected
):
    lines = []
    for name, died_s, *said in deaths:
        why, *reason = said[0] if said else ["was killed by signal 9"]
        lines.append(
            {"name": name, "time": died_s + 5.0, "down_s": 5.0, "why": why, "reason": "".join(reason)}
        )
    (tmp_path / "restarts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkey = LendingMonkey.__new__(LendingMonkey)
    monkey.roles = types.SimpleNamespace(folder=tmp_path)
    monkey.lent = [Lent(*fault, began_s=1000.0, ended_s=1000.0 + fault[2])]
    assert monkey.killed(60.0) == expected


def test_what_was_suspended_when_the_run_ended_need_not_have_been_restarted(tmp_path):
    monkey = LendingMonkey.__new__(LendingMonkey)
    monkey.roles = types.SimpleNamespace(folder=tmp_path)
    monkey.lent = [Lent("SIGSTOP", "rollout", 90.0, began_s=1000.0, ended_s=1020.0)]
    assert monkey.killed(60.0) == ([], [])


CLOCK = """
import os, struct, time
def ahead_by(seconds):
    with open(os.environ["ASYNCRL_TEST_CLOCK"], "wb") as file:
        file.write(struct.pack("=q", seconds))
real, monotonic = time.time(), time.monotonic()
for seconds in (3600, -3600, 0):
    ahead_by(seconds)
    print(round((time.time() - real - time.monotonic() + monotonic) / 60))
"""


def test_a_process_sees_its_clock_set_forward_and_back(tmp_path):
    library, clock = tmp_path / "set_clock.so", tmp_path / "clock"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    clock.write_bytes(bytes(8))
    done = subprocess.run(
        [sys.executable, "-c", CLOCK], capture_output=True, text=True, check=True,
        env=os.environ | {"ASYNCRL_TEST_CLOCK": str(clock), "LD_PRELOAD": str(library)},
    )  # fmt: skip
    assert done.stdout.split() == ["60", "-60", "0"]
