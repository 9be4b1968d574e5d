"""Whom the chaos script kills: every kind of process that a run of this configuration has."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from asyncrl.config import parse_config
from scripts.testing import faults

PARENT = """
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def parent():
    """A process with two children."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    children = psutil.Process(process.pid).children()
    yield process
    for one in (*children, process):
        one.kill()
    process.wait(10)
    process.stdout.close()


def roles(process=None, **sections):
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}} | sections)
    child = SimpleNamespace(popen=process)
    main = SimpleNamespace(buffer=child, engines=[child, child], trainer=child)
    return SimpleNamespace(config=config, folder=Path(), token="", main=main, envs=[child], workers=[child])


def test_a_run_with_workers_and_ranks_has_them_as_victims():
    assert faults.victims(roles()) == ["buffer", "engine", "vllm", "rollout", "trainer"]
    plain = ["buffer", "env", "engine", "vllm", "rollout", "trainer"]
    assert faults.victims(roles(env={"name": "code"})) == plain
    both = roles(env={"name": "gridworld", "processes": 2}, train={"ranks": 2})
    assert faults.victims(both) == [*plain, "env worker", "trainer rank"]


def test_a_rank_is_below_the_trainer_and_a_worker_below_its_service(parent):
    monkey = faults.Monkey(roles(parent), SimpleNamespace(links={}), kills=1, seed=0)
    below = {p.pid for p in psutil.Process(parent.pid).children()}
    for role in ("trainer rank", "env worker"):
        assert {p.pid for p in monkey._processes(role)} == below
    assert [p.pid for p in monkey._processes("trainer")] == [parent.pid]
    assert len(monkey._processes("engine")) == 2


def test_faults_end_with_the_time_even_if_there_were_too_few(parent):
    monkey = faults.Monkey(roles(parent), SimpleNamespace(links={}), kills=10**6, seed=0, seconds=0.0)
    monkey._wait_beyond = lambda step: step + 1
    monkey.start()
    deadline = time.monotonic() + 20
    while monkey.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert monkey.out_of_time
    assert monkey.faults == []
