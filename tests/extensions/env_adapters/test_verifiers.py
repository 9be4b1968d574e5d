"""Environments of the verifiers library, written as its authors write them."""

import asyncio
import signal

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.extensions.env_adapters.verifiers import Verifiers
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.packages import needs

needs("verifiers")


def play(*turns, index=0, split="train", **config):
    """Play turns through a host; return the session and its steps."""

    async def episode():
        host = EnvHost()
        try:
            task = Task("t", "verifiers", index, split, {"row": index})
            opened = await host.open(task, {"id": "vf-words", **config})
            steps = []
            for i, turn in enumerate(turns):
                action = turn if isinstance(turn, Action) else Action(f"<answer>{turn}</answer>")
                steps.append(await host.step(opened.id, i, action, 30))
            return opened, steps
        finally:
            await host.close_all()

    return asyncio.run(asyncio.wait_for(episode(), 60))


def call(name, **arguments):
    return Action("", (ToolCall("c1", name, arguments),))


def test_a_prompt_replies_and_the_rubrics_score_make_an_episode():
    opened, (wrong, right) = play("car", "cat")
    assert opened.messages == [
        {"role": "system", "content": "Answer in <answer> tags."},
        {"role": "user", "content": "A word of 3 letters."},
    ]
    assert opened.opened.max_turns == 3
    assert (wrong.messages, wrong.done) == ([{"role": "user", "content": "2 right"}], False)
    assert (right.done, right.reward, right.success, right.truncated) == (True, 1.0, True, False)
    assert (right.components["exact"], right.components["ended_once"]) == (1.0, 1.0)
    assert right.components["num_turns"] == 2.0


def test_a_limit_of_turns_truncates_and_a_final_reply_does_not():
    _, steps = play("a", "b", "c")
    assert (steps[-1].done, steps[-1].truncated, steps[-1].reward) == (True, True, 0.0)
    _, given_up = play("give up")
    assert (given_up[-1].done, given_up[-1].truncated, given_up[-1].success) == (True, False, False)
    _, last = play("a", "b", "cat")
    assert (last[-1].success, last[-1].truncated) == (True, False)
    _, lower = play("a", max_turns=1)
    assert (lower[-1].done, lower[-1].truncated) == (True, True)


def test_one_turn_is_a_whole_episode_where_the_environment_has_one():
    _, (step,) = play("dog", index=1, args={"kind": "single"})
    assert (step.reward, step.done, step.truncated) == (1.0, True, False)


def test_tools_are_offered_called_and_their_errors_shown():
    opened, steps = play(
        call("double", number=5), call("triple"), Action("it is 10"), args={"kind": "tools", "max_turns": 5}
    )
    assert opened.opened.tools[0]["function"]["name"] == "double"
    assert opened.opened.tools[0]["function"]["parameters"]["required"] == ["number"]
    assert steps[0].messages == [{"role": "tool", "content": "10", "tool_call_id": "c1"}]
    assert "triple" in steps[1].messages[0]["content"]
    assert (steps[2].reward, steps[2].components["total_tool_calls"]) == (1.0, 2.0)


def test_a_malformed_call_is_answered_and_does_not_end_the_episode():
    _, steps = play(
        Action("", parse_errors=("not JSON",)), Action("10"), args={"kind": "tools", "max_turns": 5}
    )
    assert [m["content"] for m in steps[0].messages] == ["error: not JSON"]
    assert (steps[0].done, steps[1].reward) == (False, 1.0)


def test_tasks_are_rows_and_a_single_dataset_is_divided():
    def answers(split, **args):
        tasks = Verifiers.tasks(split, "verifiers", id="vf-words", args=args)
        return [task.data["row"] for task in tasks]

    assert (answers("train"), answers("heldout")) == ([0, 1, 2, 3], [0, 1])
    assert (answers("train", held_out=False), answers("heldout", held_out=False)) == ([0, 2, 4], [1, 3, 5])
    _, (held,) = play("oak", index=0, split="heldout")
    assert held.success


def test_the_check_runs_as_far_as_it_can():
    for held_out in (False, True):
        findings = check_env("verifiers", {"id": "vf-words", "args": {"held_out": held_out}}, 2)
        assert [f for f in findings if not f.ok] == []


def test_a_gone_sandbox_is_infrastructure_and_the_process_keeps_its_signals():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InfrastructureError, match="the sandbox is gone"):
        play("break", args={"max_turns": 9})
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"id": "no-such-env"}, "'no-such-env' cannot be loaded"),
        ({"args": {"kind": "group"}}, r"scores whole groups \(best_of\)"),
        ({"index": 77}, "row 77 is not in the train dataset of 4 rows"),
    ],
)
def test_what_cannot_be_played_is_named(config, problem):
    with pytest.raises(EnvironmentFailure, match=problem):
        play(**config)
    with pytest.raises(ConfigError, match="needs it"):
        next(Verifiers.tasks("train", "verifiers"))
