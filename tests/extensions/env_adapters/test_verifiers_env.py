"""Our environments, loaded and evaluated by verifiers itself."""

import asyncio
import json

from openai import AsyncOpenAI

from tests.extensions.env_adapters.chat_model import chat_model, to_the_goal, with_calculator
from tests.packages import needs

needs("verifiers")

import verifiers as vf  # noqa: E402

SELF_PLAY = {"level": 3, "heldout_opponent": "policy"}
MODULE = "asyncrl.extensions.env_adapters.verifiers_env"


def evaluated(answer, examples=3, **arguments):
    """Evaluate by the library; return its outputs and what the model was asked."""
    made = vf.load_environment(MODULE, **arguments)
    with chat_model(answer) as (url, asked):
        client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        found = made.evaluate_sync(client, "policy", num_examples=examples, rollouts_per_example=2)
    return found["outputs"], asked


def test_an_expert_gets_our_reward_and_its_components_in_the_librarys_evaluation():
    outputs, asked = evaluated(to_the_goal, env="gridworld", config={"size": 4}, heldout=3)
    assert [one["reward"] for one in outputs] == [1.0] * 6
    assert {one["metrics"]["goal"] for one in outputs} == {1.0}
    assert {one["metrics"]["success"] for one in outputs} == {1.0}
    # Each turn of the model is one request.
    assert sum(one["metrics"]["num_turns"] for one in outputs) == len(asked)
    assert all(one["prompt"][0]["content"].startswith("goal ") for one in outputs)


def test_a_wrong_model_gets_no_reward_and_its_episode_ends_at_our_limit():
    outputs, _ = evaluated(lambda body: {"content": "down"}, 1, env="gridworld", config={"max_turns": 2})
    assert [(one["reward"], one["metrics"]["invalid"], one["metrics"]["num_turns"]) for one in outputs] == [
        (0.0, 2.0, 2.0)
    ] * 2


def test_tools_are_offered_and_a_malformed_call_is_answered_under_its_own_id():
    outputs, asked = evaluated(with_calculator, 1, env="calculator", config={"say_fraction": 0.0}, heldout=1)
    assert [one["reward"] for one in outputs] == [1.0, 1.0]
    assert asked[0]["tools"][0]["function"]["name"] == "calc"
    answers = [one for one in asked[-1]["messages"] if one["role"] == "tool"]
    assert [one["tool_call_id"] for one in answers] == ["bad1", "c1"]
    assert answers[0]["content"] == "bad call"


def test_a_turn_that_a_limit_cuts_is_not_played():
    outputs, asked = evaluated(
        lambda body: {"content": "no", "finish_reason": "length"}, 1, env="gridworld", heldout=1
    )
    assert [(one["reward"], one["is_truncated"]) for one in outputs] == [(0.0, True)] * 2
    assert len(asked) == 2


def test_an_environment_of_several_agents_is_an_error_of_the_rollout():
    outputs, _ = evaluated(lambda body: {"content": "a 1"}, 1, env="nim", config=SELF_PLAY, heldout=1)
    assert all("plays several agents" in json.dumps(one["error"]) for one in outputs)


def test_episodes_leave_no_session_behind():
    from asyncrl.extensions.env_adapters.verifiers_env import AsyncrlEnv

    async def play():
        made = vf.load_environment(MODULE, env="gridworld", heldout=1)
        assert isinstance(made, AsyncrlEnv)
        with chat_model(to_the_goal) as (url, _):
            client = AsyncOpenAI(base_url=url, api_key="none")
            return await made.rollout(made.get_eval_dataset()[0], client, "policy")

    state = asyncio.run(play())
    assert "playing" not in state
    assert state["episode"]["reward"] == 1.0
