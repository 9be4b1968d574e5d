"""Team: who speaks when, what keepers see, whose reward is whose; trained by the agent-wise estimators."""

import asyncio

import numpy as np
import pytest
import torch

from asyncrl.algo.advantage.multi_agent import multi_agent
from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.env.protocol import MAIN_AGENT, Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.team.env import Team
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.extensions.supervised.demonstrations import demonstrations, encode
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.services.env.client import LocalEnvs
from asyncrl.train.step.step_batch import build_step_batch, to_advantage_batch
from asyncrl.types import Lease, Task


def make(seed=0, **config):
    return Team(Task("t", "team", seed), **config)


def ask(*stores, question="how many figs?"):
    calls = [
        ToolCall(f"call{i:05d}", "ask", {"store": s, "question": question}) for i, s in enumerate(stores)
    ]
    return Action("", tuple(calls))


def play(env, *actions):
    env.reset()
    return [asyncio.run(env.step(action)) for action in actions]


def test_a_keeper_sees_its_own_store_and_the_question_and_no_more():
    env = make(level=2)
    first, second = env.question.stores
    (step,) = play(env, ask(first, question="how many pears, please?"))
    assert step.agent == "keeper/1"
    assert [m["role"] for m in step.messages] == ["system", "user"]
    shown = step.messages[0]["content"] + step.messages[1]["content"]
    assert first in shown and second not in shown and env.question.text not in shown
    assert "how many pears, please?" in shown
    for thing, count in env.question.stores[first].items():
        assert f"{count} {thing}" in shown


def test_the_keepers_reply_is_the_result_of_the_call():
    env = make(level=1)
    (store,) = env.question.stores
    opened, back, end = play(env, ask(store), Action("there are 7"), Action(str(env.question.answer)))
    assert opened.agent == "keeper/1"
    assert back.agent == MAIN_AGENT
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in back.messages] == [
        ("tool", "call00000", "there are 7")
    ]
    assert (end.done, end.reward, end.success) == (True, 1.0, True)


def test_two_calls_of_one_turn_are_two_conversations_and_answered_in_order():
    env = make(level=2)
    one, two = env.question.stores
    steps = play(env, ask(one, two), Action("3"), Action("4"))
    assert [step.agent for step in steps] == ["keeper/1", "keeper/2", MAIN_AGENT]
    assert [m["content"] for m in steps[-1].messages] == ["3", "4"]
    # The same store twice is two invocations as well.
    steps = play(make(level=2), ask(one, one), Action("3"), Action("4"))
    assert [step.agent for step in steps] == ["keeper/1", "keeper/2", MAIN_AGENT]
    assert [m["content"] for m in steps[-1].messages] == ["3", "4"]


def test_the_main_agents_mistakes_are_answered_without_a_keeper():
    env = make(level=1)
    calls = (
        ToolCall("a", "ask", {"store": "moon", "question": "?"}),
        ToolCall("b", "tell", {}),
        ToolCall("c", "ask", {}),
    )
    (step,) = play(env, Action("", calls, ("no JSON",)))
    assert step.agent == MAIN_AGENT and not env.speaking
    assert [m["content"] for m in step.messages] == [
        "error: there is no store 'moon'",
        "error: no tool 'tell'; there are ask",
        "error: ask: argument 'store' is missing",
        "error: no JSON",
    ]


def test_a_good_call_beside_a_bad_one_is_asked_and_both_are_answered():
    env = make(level=1)
    (store,) = env.question.stores
    calls = (
        ToolCall("a", "ask", {"store": "moon", "question": "?"}),
        ToolCall("b", "ask", {"store": store, "question": "?"}),
    )
    asked, back = play(env, Action("", calls), Action("5"))
    assert asked.agent == "keeper/1"
    assert [m["content"] for m in back.messages] == ["error: there is no store 'moon'", "5"]


def test_a_keeper_of_level_3_counts_with_a_tool_of_its_own():
    env = make(level=3)
    store, held = next(iter(env.question.stores.items()))
    thing = env.question.thing
    count = Action("", (ToolCall("a", "count", {"thing": thing}),))
    opened, counted, wrong, back = play(
        env, ask(store), count, Action("", (ToolCall("a", "count", {"thing": "gold"}),)), Action("ten")
    )
    assert [tool["function"]["name"] for tool in opened.tools] == ["count"]
    assert str(held[thing]) not in opened.messages[1]["content"].replace("how many figs?", "")
    assert (counted.agent, counted.messages[0]["content"]) == (None, str(held[thing]))
    assert wrong.messages[0]["content"].startswith("error: there is no 'gold' in the store; there are ")
    assert back.messages[0]["content"] == "ten"


@pytest.mark.parametrize(
    ("credit", "said", "rewards"),
    [
        ("team", (0, 0), {"keeper/1": 0.0, "keeper/2": 0.0}),
        ("own", (0, 1), {"keeper/1": 1.0, "keeper/2": 0.0}),
        ("own", (0, 0), {"keeper/1": 1.0, "keeper/2": 1.0}),
    ],
)
def test_keepers_earn_the_teams_reward_or_their_own(credit, said, rewards):
    env = make(level=2, credit=credit)
    right = [held[env.question.thing] for held in env.question.stores.values()]
    replies = [Action(str(number + off)) for number, off in zip(right, said, strict=True)]
    wrong = Action(str(env.question.answer + 1))
    end = play(env, ask(*env.question.stores), *replies, wrong)[-1]
    assert (end.reward, end.rewards) == (0.0, rewards)


def test_the_turn_limit_counts_everybodys_turns():
    env = make(level=1, max_turns=2)
    (store,) = env.question.stores
    _, end = play(env, ask(store), Action("7"))
    assert (end.done, end.truncated, end.success, end.reward) == (True, True, False, 0.0)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="credit: must be one of team, own, got 'mine'"):
        make(credit="mine")
    with pytest.raises(ValueError, match="level: must be one of"):
        make(level=4)


class Scripted:
    """Samples what the oracle would say; the second episode of a group ends with a wrong answer."""

    def __init__(self, renderer, envs):
        self.renderer, self.envs = renderer, envs

    async def generate(self, request):
        env = self.envs.opened[request.session]
        heard = self.renderer.tokenizer.decode(request.token_ids.tolist()).split("<|im_start|>")[-2]
        message = env.oracle([{"role": heard.split("\n")[0]}])
        if env.asked and env.speaking is None and request.session.startswith("w-g-1"):
            message = {"role": "assistant", "content": "0"}
        ids = self.renderer.assistant(message, env.tools)
        return Generated(ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop")


class Watched(LocalEnvs):
    """Local environments, found again by the order in which episodes open them."""

    def __init__(self, names):
        super().__init__()
        self.names, self.opened = iter(names), {}

    async def open(self, task, config):
        session = await super().open(task, config)
        self.opened[next(self.names)] = self.host.sessions[session.id].env
        return session


def run(renderer, level, size):
    envs = Watched([f"w-g-{i}-1" for i in range(size)])
    task = Task("train-0", "team", 0)
    settings = EpisodeSettings(Limits(0, 100, 1000), env_config={"level": level}, check_history=True)
    player = ChatPlayer(Scripted(renderer, envs), envs, renderer, parse_hermes, settings)
    return asyncio.run(EpisodeGroupRunner(player).run_group(Lease("g", task, 0, 1, size, 1, 60.0), "w", 30.0))


def test_a_group_of_teams_is_credited_by_agent(renderer):
    group = run(renderer, 2, 2)
    assert [(t.rollout, t.info.get("agent", ""), t.reward) for t in group.trajectories] == [
        (0, "", 1.0), (1, "", 0.0), (0, "keeper", 1.0), (0, "keeper", 1.0), (1, "keeper", 0.0), (1, "keeper", 0.0),
    ]  # fmt: skip
    assert all(t.info["history_matches"] for t in group.trajectories)
    # Both keepers of an episode answer calls of the main agent's first turn, one after the other.
    assert [
        (t.info["agent_name"], t.info["called_by"], t.info["call_turn"]) for t in group.trajectories[2:]
    ] == [("keeper/1", "", 0), ("keeper/2", "", 0)] * 2
    batch = build_step_batch([group], 0, 0)
    advantages = multi_agent(to_advantage_batch(batch)).advantages
    seen = [float(advantages[row, :count].unique()) for row, count in enumerate(batch.counts)]
    # Standardised among the two main agents, and among the four keepers.
    main, keeper = 0.5 / 2**-0.5, 0.5 / (1 / 3) ** 0.5
    assert seen == pytest.approx([main, -main, keeper, keeper, -keeper, -keeper], abs=1e-4)
    assert all(torch.all(advantages[row, count:] == 0) for row, count in enumerate(batch.counts))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_demonstrations_have_the_tokens_of_the_same_episode_rolled_out(renderer, level):
    trajectories = run(renderer, level, 1).trajectories
    demos = list(demonstrations(Team, "team", {"level": level}, 1, 1.0, seed=0))
    assert len(demos) == len(trajectories) == level + 1
    for trajectory, demo in zip(trajectories, demos, strict=True):
        encoded = encode(renderer, demo)
        ids, mask = encoded.ids, encoded.mask
        assert trajectory.token_ids.tolist() == ids.tolist()
        assert trajectory.loss_mask.tolist() == mask.tolist()
        assert trajectory.reward == demo.reward == 1.0


def test_the_expert_answers_rightly_on_every_level():
    for level in Team.levels:
        env = make(2, level=level)
        messages = env.reset()
        for _ in range(env.max_turns):
            step = asyncio.run(env.step(to_action(env.oracle(messages))))
            messages = step.messages
            if step.done:
                break
        assert (step.reward, step.success) == (1.0, True)


def test_it_passes_the_environment_check():
    assert [f for f in check_env("team") if not f.ok] == []
