"""Engines that change over between policies are real processes, and some die or hang on the way.

Environment services stand for engines: they start as soon. They say nothing of their requests, so that they leave at
the deadline or by their death.
"""

import asyncio
import json
import signal

import pytest

import asyncrl.launch.engine_moves as engine_moves
import asyncrl.launch.process_changes as process_changes
from asyncrl.config import parse_config
from asyncrl.gpus import ORDER, VARIABLE
from asyncrl.launch.engine_balance import Move
from asyncrl.launch.engine_moves import EngineMoves
from asyncrl.launch.process_group import ManagedProcess
from asyncrl.launch.roles import PolicyRoles, Roles
from tests.waiting import wait_until

STATS = {"version": 0, "waiting_for_batch": 1}
THERE, BACK = Move("", "keepers", "they have more to do"), Move("keepers", "", "now these have")
SOME_S, START_S = 0.5, 60.0
GPU = {VARIABLE: "3", ORDER: "PCI_BUS_ID"}


class Moving:
    """The engines of two policies, and what was decided for them."""

    def __init__(self, process_group, folder, monkeypatch, start_s):
        config = parse_config(
            {
                "model": {"path": "m"},
                "env": {"name": "gridworld"},
                "run": {"start_timeout_s": start_s},
                "engine": {"count": 2},
                "rollout": {"episode_timeout_s": SOME_S},
                "scale": {"between_policies": True, "cooldown_s": SOME_S},
                "policies": {"keepers": {"agents": ["keeper"]}},
            }
        )
        self.group, self.folder, self.said, self.move, self.held = process_group, folder, [], None, set()
        monkeypatch.setattr(engine_moves, "decide", self._decide)
        monkeypatch.setattr(process_changes, "OBSERVE_EVERY_S", 0.01)
        monkeypatch.setattr(PolicyRoles, "_argv", lambda *_: ["serve", "env", "--folder", str(folder)])
        self.roles = Roles(config, folder, "m", folder / "weights", process_group=process_group)
        self.roles.add_policy("keepers", config.policy("keepers"), folder, "m")
        self.keepers = self.roles.policies["keepers"]
        for policy, gpus in ((self.roles, {}), (self.roles, GPU), (self.keepers, {})):
            # Nobody asks them anything.
            policy.buffer = policy.trainer = ManagedProcess("", None, folder)
            policy.engines.append(policy.start_one("engine", gpus))
        for engine in self.roles.every_engine:
            process_group.wait_ready(engine, START_S)
        self.runner = asyncio.Runner()
        self.moves = EngineMoves(self.roles, folder, self.said.append)

    def _decide(self, window, changes, held, cooldown_s):
        self.held, move = held, self.move
        self.move = None
        return move

    def tick(self):
        return self.runner.run(self.moves.tick(STATS))

    def until(self, condition):
        """Go on until this is so."""
        wait_until(lambda: self.tick() or condition())

    def begin(self, move):
        """Have a move decided and begun; return the engine that leaves."""
        self.move = move
        donor = self.moves.policies[move.donor]
        newest = donor.engines[-1]
        wait_until(lambda: self.tick())
        assert newest not in donor.engines
        return newest

    def started(self, name):
        """Return the process of this name as soon as it is started."""
        self.until(lambda: any(one.name == name for one in self.group.processes))
        return next(one for one in self.group.processes if one.name == name)

    def names(self):
        return [[one.name for one in policy.engines] for policy in (self.roles, self.keepers)]

    @property
    def written(self):
        return [json.loads(line) for line in (self.folder / "scaling.jsonl").read_text().splitlines()]


@pytest.fixture
def moving(process_group, tmp_path, monkeypatch):
    made = []

    def make(start_s=START_S):
        made.append(Moving(process_group, tmp_path, monkeypatch, start_s))
        return made[-1]

    yield make
    for run in made:
        run.runner.close()


@pytest.mark.slow
def test_the_donors_newest_engine_ends_and_one_of_the_receiver_starts_on_its_gpus_and_the_same_way_back(
    moving,
):
    run = moving()
    leaves = run.begin(THERE)
    assert run.roles.job()["retired"] == [leaves.url]
    assert run.keepers.job()["retired"] == []
    started = run.started("keepers-engine-1")
    assert not leaves.alive()
    assert {name: started.env[name] for name in GPU} == GPU
    assert run.names() == [["engine-0"], ["keepers-engine-0"]]
    run.until(lambda: started in run.keepers.engines)
    assert run.keepers.job()["added"] == {"engine": [started.url]}
    assert run.keepers.job()["engines"] == [run.keepers.engines[0].url, started.url]
    assert run.roles.job()["added"] == {"engine": [], "env": []}
    assert run.roles.supervisor.serves(started)
    assert run.roles.every_engine == [*run.roles.engines, *run.keepers.engines]

    assert run.begin(BACK) is started
    assert run.keepers.job()["retired"] == [started.url]
    started.popen.kill()
    # On a busy machine its time to finish would otherwise be over before it has died.
    started.popen.wait(START_S)
    again = run.started("engine-1")
    run.until(lambda: again in run.roles.engines)
    assert {name: again.env[name] for name in GPU} == GPU
    assert run.roles.job()["added"] == {"engine": [again.url], "env": []}
    assert run.roles.supervisor.restarts() == {}
    assert run.said == [
        "scale.engine: engine-1 changes over from main to keepers: they have more to do",
        "scale.engine: engine-1 has left main: 0 requests were not finished in time and are played again",
        "scale.engine: keepers-engine-1 takes part for keepers; engines now: main 1, keepers 2",
        "scale.engine: keepers-engine-1 changes over from keepers to main: now these have",
        "scale.engine: keepers-engine-1 has left keepers: it was killed by signal 9 meanwhile, and the requests that "
        "it had are played again",
        "scale.engine: engine-1 takes part for main; engines now: main 2, keepers 1",
    ]  # fmt: skip
    route = {"role": "engine", "from": "main", "to": "keepers"}
    events = [{key: value for key, value in one.items() if key != "time"} for one in run.written[:3]]
    assert events == [
        route | {"name": "engine-1", "reason": "they have more to do", "engines": {"main": 1, "keepers": 1}},
        route
        | {"name": "engine-1", "left": "deadline", "unfinished": 0, "engines": {"main": 1, "keepers": 1}},
        route | {"name": "keepers-engine-1", "takes_part": "keepers", "engines": {"main": 1, "keepers": 2}},
    ]


@pytest.mark.slow
def test_a_donor_gets_its_engine_back_where_the_receivers_dies_before_it_serves(moving):
    run = moving()
    run.begin(THERE)
    run.started("keepers-engine-1").popen.kill()
    back = run.started("engine-1")
    run.until(lambda: back in run.roles.engines)
    assert {name: back.env[name] for name in GPU} == GPU
    assert run.names() == [["engine-0", "engine-1"], ["keepers-engine-0"]]
    assert run.said[2:] == [
        "scale.engine: keepers gets no engine for 2 s: keepers-engine-1 was killed by signal 9",
        "scale.engine: engine-1 takes part for main; engines now: main 2, keepers 1",
    ]
    # Nothing has changed that a move back would have to wait for, but the receiver has to.
    run.until(lambda: run.held)
    assert run.held == {"keepers"}
    run.until(lambda: not run.held)


@pytest.mark.slow
def test_gpus_on_which_no_engine_starts_are_tried_by_both_policies_by_turns(moving):
    run = moving(start_s=SOME_S)
    run.begin(THERE)
    for name in ("keepers-engine-1", "engine-1", "keepers-engine-1"):
        run.started(name).popen.send_signal(signal.SIGSTOP)
        run.until(lambda: not any(one.name == name for one in run.group.processes))  # noqa: B023
    missed = "did not start: no progress within run.start_timeout_s=0.5 s"
    assert run.said[2:] == [
        f"scale.engine: keepers gets no engine for 2 s: keepers-engine-1 {missed}",
        f"scale.engine: main gets no engine for 2 s: engine-1 {missed}",
        f"scale.engine: keepers gets no engine for 4 s: keepers-engine-1 {missed}",
    ]
    assert [(one["policy"], one["wait_s"]) for one in run.written if "failed" in one] == [
        ("keepers", 2.0), ("main", 2.0), ("keepers", 4.0)
    ]  # fmt: skip
    started = run.started("engine-1")
    assert {name: started.env[name] for name in GPU} == GPU


def test_no_engine_goes_to_a_policy_whose_training_has_ended(moving, monkeypatch):
    run = moving()
    monkeypatch.setattr(run.roles.supervisor, "done", lambda process: process is run.keepers.trainer)
    run.until(lambda: run.held)
    assert run.held == {"keepers"}
