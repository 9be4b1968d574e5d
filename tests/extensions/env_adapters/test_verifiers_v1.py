"""Environments of `verifiers.v1`, written as its authors write them, played in a Python of their own."""

import asyncio
import re

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.extensions.env_adapters.verifiers_v1 import VerifiersV1, helper_of
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.benchmark_env import benchmark_python

pytestmark = pytest.mark.slow
PACKAGES = (
    "verifiers==0.4.0", "mcp==2.0.0", "mcp-types==2.0.0", "openai==2.54.0", "renderers==0.1.12", "tomli-w==1.2.0",
    "prime-pydantic-config==0.4.3", "prime-runs==0.1.4", "prime-sandboxes==0.5.1", "prime-traces==0.0.10",
    "prime-tunnel==0.1.15",
)  # fmt: skip
"""What verifiers imports and is not, or not in that version, beside the lock."""


@pytest.fixture(scope="module")
def python(pytestconfig):
    found = benchmark_python(pytestconfig.cache.mkdir("verifiers-v1"), PACKAGES, dependencies=False)
    with pytest.MonkeyPatch.context() as patch:
        # Tasksets are found in the folder asyncrl is started in.
        patch.chdir(pytestconfig.rootpath / "tests/extensions/env_adapters")
        # On a loaded machine its imports take longer than an episode may to start.
        helper_of(found).ask({"address": True}, 600)
        yield found
        helper_of(found).close()


def play(python, id, *turns, row=0, **config):
    """Play turns through a host; return the session and its steps."""

    async def episode():
        host = EnvHost()
        try:
            task = Task("t", "verifiers_v1", row, "train", {"row": row})
            opened = await host.open(task, {"id": id, "python": python, **config})
            steps = []
            for i, turn in enumerate(turns):
                action = turn if isinstance(turn, Action) else Action(turn)
                steps.append(await host.step(opened.id, i, action, 60))
            return opened, steps
        finally:
            await host.close_all()

    return asyncio.run(asyncio.wait_for(episode(), 120))


def call(name, **arguments):
    return Action("", (ToolCall("call00000", name, arguments),))


def rows(python, split, **config):
    tasks = VerifiersV1.tasks(split, "verifiers_v1", id="vf1-sums", python=python, **config)
    return [(task.id, task.data) for task in tasks]


def test_a_task_is_asked_answered_and_scored_by_its_rewards(python):
    opened, (right,) = play(python, "vf1-sums", "2")
    assert opened.messages == [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1?"}]
    assert (right.done, right.reward, right.success, right.truncated) == (True, 2.0, True, False)
    assert right.components == {"correct": 1.0, "length": 1.0}
    _, (wrong,) = play(python, "vf1-sums", "six", row=1, taskset={"start": 7})
    assert (wrong.reward, wrong.success, wrong.components["length"]) == (0.0, False, 3.0)


def test_tasks_are_rows_divided_unless_the_held_out_ones_have_settings_of_their_own(python):
    assert rows(python, "train") == [(f"train-{i}", {"row": i, "name": f"sum-{i + 1}"}) for i in (0, 2, 4)]
    assert [name for name, _ in rows(python, "heldout")] == ["heldout-1", "heldout-3", "heldout-5"]
    held = rows(python, "heldout", held_out={"start": 50})
    assert [data["name"] for _, data in held] == [f"sum-{i}" for i in range(50, 56)]
    assert len(rows(python, "train", held_out={"start": 50})) == 6


def test_tools_are_offered_called_and_malformed_calls_answered_beside_them(python):
    malformed = Action("", parse_errors=("not JSON",))
    opened, steps = play(
        python,
        "vf1-tools",
        malformed,
        call("triple"),
        call("calculator_double", number=21),
        "42",
        max_turns=5,
    )
    assert opened.opened.tools[0]["function"]["name"] == "calculator_double"
    assert [m["content"] for m in steps[0].messages] == ["error: not JSON"]
    assert "there are calculator_double" in steps[1].messages[0]["content"]
    assert [(m["role"], m["content"]) for m in steps[2].messages] == [("tool", "42")]
    assert (steps[3].done, steps[3].reward) == (True, 1.0)
    both = Action("", (ToolCall("call00000", "calculator_double", {"number": 1}),), ("no name",))
    _, steps = play(python, "vf1-tools", both)
    assert [m["content"] for m in steps[0].messages] == ["2", "error: no name"]


def test_each_agents_conversation_goes_on_where_it_was_and_gets_the_reward_of_its_trace(python):
    _, steps = play(python, "vf1-dialogue", "dog", "no", "cat")
    assert (steps[0].agent, steps[0].messages) == ("critic/1", [{"role": "user", "content": "Is dog good?"}])
    assert (steps[1].agent, steps[1].messages) == ("", [{"role": "user", "content": "wrong"}])
    assert (steps[2].reward, steps[2].rewards, steps[2].success) == (1.0, {"critic/1": 0.5}, True)
    _, cut = play(python, "vf1-dialogue", "dog", "no", "sun", "yes", max_turns=2)
    assert (cut[-1].done, cut[-1].truncated, cut[-1].success) == (True, True, False)
    assert (cut[-1].reward, cut[-1].rewards) == (0.0, {"": 0.0, "critic/1": 0.5})


def test_a_harness_of_ones_own_may_stream_and_asks_for_chat_completions_only(python):
    own = {"id": "vf1-streaming"}
    opened, steps = play(python, "vf1-sums", "3", "2", environment={"agent": {"harness": own}})
    assert opened.messages == [{"role": "user", "content": "1 + 1?"}]
    assert (steps[0].messages, steps[0].done) == ([{"role": "user", "content": "Sure?"}], False)
    assert (steps[1].reward, steps[1].done) == (2.0, True)
    with pytest.raises(EnvironmentFailure, match="only chat completions are answered, not /responses"):
        play(python, "vf1-sums", environment={"agent": {"harness": {**own, "api": "responses"}}})


def test_the_check_runs_as_far_as_it_can(python):
    for held_out in ({}, {"held_out": {"start": 50}}):
        findings = check_env("verifiers_v1", {"id": "vf1-sums", "python": python, **held_out}, 3)
        assert [f for f in findings if not f.ok] == []


def test_failures_are_the_environments_or_the_infrastructures(python):
    with pytest.raises(EnvironmentFailure, match="TaskError: task SumsTask scoring"):
        play(python, "vf1-sums", "boom")
    with pytest.raises(EnvironmentFailure, match="agent 'critic' is not to be trained"):
        play(python, "vf1-dialogue", "dog", environment={"frozen_critic": True})
    with pytest.raises(EnvironmentFailure, match="no row 77, only 6"):
        play(python, "vf1-sums", row=77)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"taskset": {"kind": "broken"}}, "RuntimeError: the data is gone"),
        ({"taskset": {"nope": 1}}, "taskset.nope; Extra inputs are not permitted"),
        ({"environment": {"agent": {"harness": {"id": "bash"}}}}, "'bash' runs what the model writes"),
        ({"environment": {"id": "no-such"}}, "no-such"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason_before_anything_is_played(python, config, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        rows(python, "train", **config)


def test_a_python_without_verifiers_is_named():
    with pytest.raises(InfrastructureError, match="did not start in /no/such/python"):
        rows("/no/such/python", "train")
    with pytest.raises(ConfigError, match=r"env\.config\.python: environment 'verifiers_v1' needs it"):
        rows("", "train")


def test_an_episode_whose_process_dies_is_a_failure_of_the_infrastructure(python):
    async def killed():
        host = EnvHost()
        try:
            task = Task("t", "verifiers_v1", 0, "train", {"row": 0})
            opened = await host.open(task, {"id": "vf1-sums", "python": python})
            await asyncio.to_thread(helper_of(python).close)
            with pytest.raises(InfrastructureError, match="its process gave no answer"):
                await host.step(opened.id, 0, Action("2"), 60)
        finally:
            await host.close_all()

    asyncio.run(asyncio.wait_for(killed(), 120))
