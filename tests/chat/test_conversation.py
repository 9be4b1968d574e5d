"""Episodes with several agents: a conversation, tokens, rewards and a trajectory for each."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.conversation import Conversation
from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.env.protocol import MAIN_AGENT, Env, Step
from asyncrl.extensions.league.next_states import note_next_states
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import FailureClass, Lease, Status, Task

HERE = __name__
TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"properties": {"a": {}}}}}


def user(text):
    return {"role": "user", "content": text}


class Asking(Env):
    """The main agent speaks, then helper 1 twice, then helper 2, then the main agent again."""

    blocking = False
    max_turns = 10

    def reset(self):
        self.said = []
        return [user("goal")]

    def step(self, action):
        self.said.append(action.content)
        return [
            Step([user("say 7")], agent="helper/1", tools=[TOOL], reward=0.5),
            Step([user("6 * 8")], reward=0.125),
            Step([user("say 8")], agent="helper/2"),
            Step([user("north 7")], agent=MAIN_AGENT, reward=0.25),
            Step(done=True, success=True, reward=1.0, rewards={"helper/1": 2.0, "helper/2": 4.0}),
        ][len(self.said) - 1]


class Judged(Env):
    """Says of each turn whether it agrees with an expert's, and credits the main agent's first turn later."""

    blocking = False

    def reset(self):
        self.turns = 0
        return [user("goal")]

    def step(self, action):
        self.turns += 1
        if self.turns == 1:
            return Step([user("say 7")], agent="helper", matches=True, reward=0.5)
        return Step(done=True, matches=False, success=True, rewards={MAIN_AGENT: 2.0})


class Generous(Env):
    """Rewards an agent that has not spoken."""

    blocking = False

    def reset(self):
        return [user("goal")]

    def step(self, action):
        return Step(done=True, rewards={"nobody": 1.0})


class Words:
    """Samples a word that says which turn it is; cut at turn `cut`."""

    def __init__(self, renderer, cut=None):
        self.renderer, self.cut, self.requests = renderer, cut, []

    async def generate(self, request):
        self.requests.append(request)
        number = len(self.requests)
        ids = self.renderer.assistant({"role": "assistant", "content": f"say {number}"})
        reason = "length" if number == self.cut else "stop"
        return Generated(
            ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), number, np.int32), reason
        )


def make_player(renderer, judging=None, **options):
    settings = EpisodeSettings(Limits(0, 16, 200), check_history=True)
    return ChatPlayer(
        Words(renderer, **options),
        LocalEnvs(),
        renderer,
        parse_hermes,
        settings,
        [judging] if judging else [],
    )


def test_the_sides_of_a_game_are_the_main_agent_and_all_further_ones(renderer):
    main, first, second = play(make_player(renderer), notes=(note_next_states,))
    (mains, places), (firsts, after_first), (seconds, after_second) = (
        (t.extras["next_states"].token_ids, t.extras["next_states"].after) for t in (main, first, second)
    )
    # The main agent's first turn calls a helper, its second one ends the episode.
    assert places == ((0, first.turns[0].start), None)
    assert [ids.tolist() for ids in mains] == [first.token_ids[: first.turns[0].start].tolist()]
    # A helper's turn before another turn of a helper leaves no state of the main agent.
    assert (firsts, after_first) == ((), (None, None))
    assert after_second == ((0, main.turns[1].start),)
    assert [ids.tolist() for ids in seconds] == [main.token_ids[: main.turns[1].start].tolist()]


def play(player, env="Asking", **asked):
    return asyncio.run(player.play(EpisodeRequest(Task("t", f"{HERE}:{env}", 0), 3, "e", **asked)))


def text(renderer, trajectory):
    return renderer.tokenizer.decode(trajectory.token_ids.tolist())


def test_every_agent_has_a_trajectory_of_its_own_tokens(renderer):
    main, first, second = play(make_player(renderer))
    expected = renderer.tokenizer.apply_chat_template(
        [
            user("goal"),
            {"role": "assistant", "content": "say 1"},
            user("north 7"),
            {"role": "assistant", "content": "say 5"},
        ],
        tokenize=False,
    )
    assert text(renderer, main) == expected.rstrip("\n")
    assert "calc(a)" in text(renderer, first) and "calc" not in text(renderer, main) + text(renderer, second)
    assert [sorted(set(t.versions[t.loss_mask].tolist())) for t in (main, first, second)] == [
        [1, 5],
        [2, 3],
        [4],
    ]
    assert [t.info.get("agent") for t in (main, first, second)] == [None, "helper", "helper"]
    assert {t.episode_index for t in (main, first, second)} == {3}
    assert all(t.info["history_matches"] for t in (main, first, second))


def test_each_turn_sends_the_tokens_of_its_own_conversation(renderer):
    player = make_player(renderer)
    main, first, second = play(player)
    for request, (trajectory, turn) in zip(
        player.generator.requests, [(main, 0), (first, 0), (first, 1), (second, 0), (main, 1)], strict=True
    ):
        assert request.token_ids.tolist() == trajectory.token_ids[: trajectory.turns[turn].start].tolist()


def test_rewards_go_to_the_turns_they_are_for_and_all_share_the_verdict(renderer):
    main, first, second = play(make_player(renderer))
    assert [turn.reward for turn in main.turns] == [0.5, 1.0]
    assert [turn.reward for turn in first.turns] == [0.125, 2.0]
    assert [turn.reward for turn in second.turns] == [4.25]
    assert [t.success for t in (main, first, second)] == [True, True, True]
    assert {t.status for t in (main, first, second)} == {Status.FINISHED}


def test_an_episode_cut_in_a_helpers_turn_is_truncated_for_all_who_have_spoken(renderer):
    found = play(make_player(renderer, cut=2))
    assert [(t.status, t.error, len(t.turns)) for t in found] == [
        (Status.TRUNCATED, "max_tokens_per_turn", 1)
    ] * 2


def test_a_reward_for_an_agent_that_has_not_spoken_is_the_environments_failure(renderer):
    (failed,) = play(make_player(renderer), "Generous")
    assert failed.failure is FailureClass.ENVIRONMENT
    assert "a reward for agent 'nobody', which has not spoken" in failed.error


def test_a_group_numbers_the_trajectories_and_says_which_episode_each_is_of(renderer):
    lease = Lease("g", Task("t", f"{HERE}:Asking", 0), 0, 1, 2, 1, 60.0)
    group = asyncio.run(EpisodeGroupRunner(make_player(renderer)).run_group(lease, "w", 30.0))
    assert [t.episode_index for t in group.trajectories] == [0, 1, 2, 3, 4, 5]
    assert [t.rollout for t in group.trajectories] == [0, 1, 0, 0, 1, 1]
    assert [t.info.get("agent", "") for t in group.trajectories] == ["", "", *["helper"] * 4]


@pytest.mark.parametrize("place", ["reward", "rewards", "components"])
@pytest.mark.parametrize(
    "value",
    [float("nan"), "much", 1e13, -(10**400), 10**5000],
    ids=["nan", "text", "1e13", "-1e400", "1e5000"],
)
def test_a_reward_that_is_no_sensible_number_is_the_environments_failure(renderer, monkeypatch, value, place):
    given = {place: value if place == "reward" else {MAIN_AGENT: value}}
    monkeypatch.setattr(Generous, "step", lambda self, action: Step(done=True, **given))
    (failed,) = play(make_player(renderer), "Generous")
    assert failed.failure is FailureClass.ENVIRONMENT
    assert "test_conversation:Generous'" in failed.error
    assert "much" in failed.error or "must be a number up to ±1e+12" in failed.error


def test_a_reward_for_another_agent_leaves_what_is_known_of_its_turn(renderer):
    main, helper = play(make_player(renderer), "Judged")
    assert (main.success, helper.success) == (True, True), "a verdict is the episode's, whoever spoke last"
    assert [(turn.reward, turn.matches) for turn in main.turns] == [(2.5, True)]
    assert [(turn.reward, turn.matches) for turn in helper.turns] == [(0.0, False)]


def test_without_an_id_the_text_of_an_answer_stands_for_the_state(renderer):
    """Ids of calls differ from episode to episode; what an environment says of its state goes before its text."""

    def states(*steps):
        conversation = Conversation(TrajectoryBuilder(Task("t", "e"), 0), renderer, [user("goal")], [])
        for step in steps:
            turn = renderer.assistant({"role": "assistant", "content": "go"})
            conversation.builder.add_turn(
                Generated(turn, np.zeros(len(turn), np.float32), np.zeros(len(turn), np.int32), "stop")
            )
            conversation.append_observation(step.messages, step.observation_id)
        last = renderer.assistant({"role": "assistant", "content": "go"})
        conversation.builder.add_given_turn(last)
        return [turn.observation_id for turn in conversation.builder.finish(Status.FINISHED).turns]

    def said(content, **fields):
        return Step([user(content)], **fields)

    here, there = states(said("here"), said("there")), states(said("there"), said("here"))
    assert here[0] == there[0] != ""
    assert here[1:] == there[:0:-1]
    assert len(set(here)) == 3
    assert states(said("here", observation_id="cell 4"))[1] == "cell 4"
