"""Processes that are scaled up and down are real ones, and some of them die or hang on their way in or out."""

import asyncio
import json
import signal
import sys
import urllib.request

import pytest

import asyncrl.extensions.autoscale.scaling as scaling
import asyncrl.launch.roles.process_changes as process_changes
from asyncrl.config import parse_config
from asyncrl.extensions.autoscale.decisions import Decision
from asyncrl.extensions.autoscale.scaling import Scaler
from asyncrl.hosts.local import spawn
from asyncrl.launch.roles.roles import Roles
from asyncrl.services.buffer.client import BufferClient
from asyncrl.types import Task
from tests.buffer.serving import ThreadService
from tests.credentials import JSON, TOKEN
from tests.waiting import wait_until

STATS = {"version": 0, "waiting_for_batch": 0, "ready": 0, "free_slots": 1, "pending": 1, "paused": False}
DOWN_WORKER = Decision("rollout", -1, "fewer do")
UP, DOWN = Decision("env", 1, "more are needed"), Decision("env", -1, "fewer do")
SOME_S = 0.5


class Scaled:
    """A run's processes, and what was decided for them."""

    def __init__(self, process_group, folder, monkeypatch, buffer=None, **settings):
        config = parse_config(
            {
                "model": {"path": "m"},
                "env": {"name": "gridworld"},
                "scale": {"env": [1, 2], "cooldown_s": 1.0},
                **settings,
            }
        )
        self.folder, self.said, self.seen = folder, [], []
        self.decision, self.limits = Decision("", 0, ""), {}
        monkeypatch.setattr(scaling, "decide", self._decide)
        monkeypatch.setattr(process_changes, "OBSERVE_EVERY_S", 0.01)
        self.roles = Roles(config, folder, "m", folder / "weights", process_group=process_group)
        self.runner = asyncio.Runner()
        self.scaler = Scaler(self.roles, buffer, folder, self.said.append)

    def _decide(self, limits, *rest):
        self.limits, decision = limits, self.decision
        self.decision = Decision("", 0, "")
        return decision

    def tick(self):
        return self.runner.run(self.scaler.tick(STATS))

    def until(self, condition):
        """Go on until this is so."""
        wait_until(lambda: self.tick() or condition())

    def decide(self, decision):
        """Have something decided and begun; return the process that comes or leaves."""
        self.decision = decision
        before = {process.name for process in self.roles.envs}
        self.until(lambda: self.decision.step == 0)
        known = {process.name: process for process in self.roles.process_group.processes}
        names = {process.name for process in self.roles.envs} if decision.step < 0 else before
        return next(process for name, process in known.items() if name not in names)

    @property
    def written(self):
        return [json.loads(line) for line in (self.folder / "scaling.jsonl").read_text().splitlines()]


@pytest.fixture
def scaled(process_group, tmp_path, monkeypatch):
    made = []

    def make(**settings):
        made.append(Scaled(process_group, tmp_path, monkeypatch, **settings))
        return made[-1]

    yield make
    for run in made:
        run.runner.close()


def open_session(process):
    """Open a session that nobody ends."""
    body = {"task": {"id": "t", "env": "gridworld", "seed": 1}, "config": {}, "idempotency_key": "k"}
    request = urllib.request.Request(f"{process.url}/v1/sessions", json.dumps(body).encode(), JSON)
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 201


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_before_it_serves_is_said_and_another_one_is_tried_later(scaled):
    run = scaled(run={"start_timeout_s": SOME_S}, scale={"env": [1, 2], "cooldown_s": SOME_S})
    run.decide(UP).popen.kill()
    run.until(lambda: run.said)
    hung = run.decide(UP)
    hung.popen.send_signal(signal.SIGSTOP)
    run.until(lambda: len(run.said) == 2)
    assert run.said[0] == "scale.env: stays at 0 for 2 s: env was killed by signal 9"
    missed = "did not start: no progress within run.start_timeout_s=0.5 s"
    assert run.said[1] == f"scale.env: stays at 0 for 4 s: env {missed}"
    assert not hung.alive()
    assert run.roles.process_group.processes == []
    assert [(one["count"], one["wait_s"]) for one in run.written] == [(0, 2.0), (0, 4.0)]
    # Until then the number that there is is the limit, and afterwards the recipe's.
    run.tick()
    assert run.limits == {"env": (1, 0)}
    run.until(lambda: run.limits == {"env": (1, 2)})


def test_a_process_that_leaves_may_die_or_take_too_long_over_what_it_has(scaled):
    run = scaled(rollout={"episode_timeout_s": SOME_S})
    for _ in range(2):
        joined = run.decide(UP)
        run.until(lambda: joined in run.roles.envs)  # noqa: B023
        open_session(joined)
    run.said.clear()
    # The newest one first.
    killed = run.decide(DOWN)
    assert run.roles.job()["retired"] == [killed.url]
    killed.popen.kill()
    run.until(lambda: len(run.said) == 2)
    slow = run.decide(DOWN)
    run.until(lambda: len(run.said) == 4)
    assert run.said == [
        "scale.env: 2 -> 1: fewer do; env-1 finishes what it has and leaves",
        "scale.env: env-1 has left: it was killed by signal 9 meanwhile, and the sessions that it had are played again",
        "scale.env: 1 -> 0: fewer do; env finishes what it has and leaves",
        "scale.env: env has left: 1 sessions were not finished in time and are played again",
    ]
    assert not slow.alive()
    assert run.roles.process_group.processes == []
    assert run.roles.supervisor.restarts() == {}
    left = [(one["name"], one["left"], one.get("death")) for one in run.written if "left" in one]
    assert left == [("env-1", "died", "was killed by signal 9"), ("env", "deadline", None)]


@pytest.mark.slow
def test_a_worker_that_dies_as_it_leaves_loses_its_leases_at_once_and_leaves_its_name_to_the_next(
    scaled, process_group, tmp_path
):
    buffer = ThreadService(tmp_path, lease_s=600.0)
    client = BufferClient(buffer.url, TOKEN)
    run = scaled(buffer=client, scale={"rollout": [1, 2], "cooldown_s": SOME_S})

    def dies(number):
        process = process_group.start("rollout-1", ["--version"], ready=False)
        process.popen = spawn([sys.executable, "-c", "import time; time.sleep(600)"], process.log, {})
        run.roles.workers = [process]
        run.decision = DOWN_WORKER
        run.until(lambda: len(run.said) == 2 * number - 1)
        process.popen.kill()
        run.until(lambda: len(run.said) == 2 * number)
        return run.runner.run(client.status())

    try:
        run.runner.run(client.add_tasks([Task("t", "gridworld", 1)]))
        run.runner.run(client.lease("rollout-1", 0.0))
        after = dies(1)
        assert (after["pending"], after["in_flight"]) == (1, 0)
        run.runner.run(client.quarantine("rollout-1", "made up"))
        assert dies(2)["quarantine_reasons"] == {}
        run.runner.run(client.close())
    finally:
        buffer.close()
    assert run.said[1] == (
        "scale.rollout: rollout-1 has left: it was killed by signal 9 meanwhile, and the groups that it had are "
        "played again"
    )
    assert [(one["left"], one["leases_lost"]) for one in run.written if "left" in one] == [
        ("died", 1),
        ("died", 0),
    ]
