"""Calculator: when the tool is needed, what it answers, what earns a reward."""

import random

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.calculator.env import Calculator
from asyncrl.types import Task


def make(seed=0, **config):
    return Calculator(Task("t", "calculator", seed), **config)


def make_asking(question, answer, needs_tool):
    env = make()
    env.question, env.answer, env.needs_tool = question, answer, needs_tool
    return env


def call(**arguments):
    return Action("", (ToolCall("call-0", "calc", arguments),))


def play(env, policy):
    messages = list(env.reset())
    while True:
        message = policy(messages)
        step = env.step(to_action(message))
        if step.done:
            return step
        messages += [message, *step.messages]


def test_the_tool_computes_and_its_result_is_the_right_answer():
    env = make_asking("41 * 37", 1517, True)
    step = env.step(call(a=41, op="*", b=37))
    assert [m["content"] for m in step.messages] == ["1517"]
    assert step.messages[0]["role"] == "tool"
    last = env.step(Action("1517"))
    assert (last.reward, last.success, last.components["tool_choice"]) == (1.0, True, 1.0)


def test_a_wrong_answer_earns_nothing():
    step = make_asking("41 * 37", 1517, True).step(Action("1516"))
    assert (step.reward, step.done, step.success) == (0.0, True, False)


def test_a_needless_call_is_noted_in_the_components():
    env = make_asking("say 5", 5, False)
    env.step(call(a=1, op="+", b=1))
    step = env.step(Action("5"))
    assert (step.reward, step.components["tool_choice"]) == (1.0, 0.0)


def test_turns_match_the_experts_call_and_then_its_answer():
    right, wrong = call(a=41, op="*", b=37), call(a=41, op="+", b=37)
    asked = [make_asking("41 * 37", 1517, True) for _ in range(4)]
    assert [
        env.step(action).matches for env, action in zip(asked, (right, wrong, Action("1517")), strict=False)
    ] == [
        True,
        False,
        False,
    ]
    assert (asked[0].step(right).matches, asked[1].step(Action("1517")).matches) == (False, True)
    said = [make_asking("say 5", 5, False) for _ in range(2)]
    assert (said[0].step(Action("5")).matches, said[1].step(call(a=1, op="+", b=4)).matches) == (True, False)
    assert asked[3].step(Action("", (), ("no JSON",))).matches is False


def test_malformed_calls_become_observations_and_never_raise():
    for action in (
        Action("", (), ("malformed tool call: no JSON",)),
        call(a="x", op="*", b=2),
        call(a=1, op="/", b=2),
        call(a=True, op="+", b=2),
        call(a=10**12, op="*", b=2),
        call(),
    ):
        step = make_asking("41 * 37", 1517, True).step(action)
        assert not step.done
        assert step.messages[0]["content"] == "bad call"
    step = make().step(Action("", (ToolCall("call-0", "rm", {}),)))
    assert step.messages[0]["content"] == "no such tool"


def test_parallel_calls_are_all_answered_in_order():
    env = make_asking("41 * 37", 1517, True)
    calls = (
        ToolCall("call-0", "calc", {"a": 1, "op": "+", "b": 2}),
        ToolCall("call-1", "calc", {"a": 5, "op": "-", "b": 9}),
    )
    assert [m["content"] for m in env.step(Action("", calls)).messages] == ["3", "-4"]


def test_every_answer_carries_the_id_of_its_call_malformed_ones_too():
    action = Action("", (ToolCall("call00000", "calc", {"a": 1, "op": "+", "b": 2}),), ("no JSON",))
    found = make_asking("41 * 37", 1517, True).step(action).messages
    assert [m["tool_call_id"] for m in found] == ["call00000", "fail00000"]


def test_the_third_turn_is_the_last():
    env = make_asking("41 * 37", 1517, True)
    for _ in range(2):
        assert not env.step(call(a=1, op="+", b=1)).done
    assert env.step(call(a=1, op="+", b=1)).done


def test_the_oracle_always_scores_one_and_a_random_player_rarely():
    rng = random.Random(0)
    oracle = [play(env := make(seed), env.oracle).reward for seed in range(200)]
    chance = [play(env := make(seed), lambda m, e=env: e.random_policy(m, rng)).reward for seed in range(400)]
    assert oracle == [1.0] * 200
    assert 0.02 < sum(chance) / 400 < 0.4
