"""First turns that an environment names ahead are sampled at once; otherwise an episode is the same."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.env.protocol import MAIN_AGENT, Env, Step
from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import FailureClass, Status, Task

HERE = __name__


def user(text):
    return [{"role": "user", "content": text}]


class Three(Env):
    """The main agent calls three helpers, says ahead what the others will be asked, and hears what they have said."""

    blocking = False
    max_turns = 5
    says_ahead = True

    def reset(self):
        self.said = []
        return user("goal")

    def step(self, action):
        self.said.append(action.content)
        number = len(self.said)
        if number <= 3:
            ahead = {f"h/{i}": user(f"say {i}") for i in (2, 3)} if number == 1 and self.says_ahead else {}
            return Step(user(f"say {number}"), agent=f"h/{number}", ahead=ahead)
        if number == 4:
            return Step(user(" ".join(self.said[1:])), agent=MAIN_AGENT)
        return Step(done=True, success=True, reward=1.0)


class Slowly(Three):
    """The first of two helpers takes two turns."""

    def step(self, action):
        self.said.append(action.content)
        return [
            Step(user("say 1"), agent="h/1", ahead={"h/2": user("say 2")}),
            Step(user("again")),
            Step(user("say 2"), agent="h/2"),
            Step(user("so?"), agent=MAIN_AGENT),
            Step(done=True, success=True),
        ][len(self.said) - 1]


class Unsaid(Three):
    says_ahead = False


class Otherwise(Three):
    """Addresses the second helper with another message than it said ahead."""

    def step(self, action):
        step = super().step(action)
        return Step(user("say 9"), agent="h/2") if len(self.said) == 2 else step


class Known(Three):
    """Says ahead what the helper will be asked that it asks now."""

    def step(self, action):
        return Step(user("say 1"), agent="h/1", ahead={"h/1": user("say 1")})


class Leaving(Three):
    """Ends the episode after the first helper's turn."""

    def step(self, action):
        step = super().step(action)
        return Step(done=True, success=False) if len(self.said) == 2 else step


class Echo:
    """Says who it is; the helpers are answered once `together` of them wait, and those that are `slow` never."""

    def __init__(self, renderer, together=1, fails="nobody", slow=()):
        self.renderer, self.together, self.fails, self.slow = renderer, together, fails, slow
        self.requests, self.given_up = [], []
        self._waiting, self._all = 0, asyncio.Event()

    async def generate(self, request):
        self.requests.append(request)
        if request.agent:
            self._waiting += 1
            if self._waiting >= self.together:
                self._all.set()
            try:
                await self._all.wait()
                if request.agent in self.slow:
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up.append(request.agent)
                raise
        if request.agent == self.fails:
            raise InfrastructureError("the engine is gone")
        text = f"word {len(request.agent)} {request.agent[-1:]}"
        ids = self.renderer.assistant({"role": "assistant", "content": text})
        logprobs = np.full(len(ids), -0.5, np.float32)
        return Generated(ids, logprobs, np.zeros(len(ids), np.int32), "stop")


def play(renderer, env, generator):
    settings = EpisodeSettings(Limits(0, 16, 200), seed=3, check_history=True)
    player = ChatPlayer(generator, LocalEnvs(), renderer, parse_hermes, settings)
    task = Task("t", f"{HERE}:{env.__name__}")

    async def within():
        async with asyncio.timeout(20):
            return await player.play(EpisodeRequest(task, 0, "e"))

    return asyncio.run(within())


def test_helpers_named_ahead_are_sampled_at_once(renderer):
    # Of helpers that are asked one after another, none would ever be answered.
    generator = Echo(renderer, together=3)
    main, *helpers = play(renderer, Three, generator)
    assert (main.status, main.error) == (Status.FINISHED, "")
    assert [t.info["agent_name"] for t in helpers] == ["h/1", "h/2", "h/3"]
    assert [(t.info["called_by"], t.info["call_turn"]) for t in helpers] == [("", 0)] * 3


def test_an_episode_is_the_same_whether_helpers_are_named_ahead_or_not(renderer):
    ahead, after = Echo(renderer), Echo(renderer)
    episodes = play(renderer, Three, ahead), play(renderer, Unsaid, after)
    for one, other in zip(*episodes, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.loss_mask.tolist() == other.loss_mask.tolist()
        assert [turn.reward for turn in one.turns] == [turn.reward for turn in other.turns]
    # So is what was asked for, with its seeds.
    asked = [sorted((r.agent, r.seed, tuple(r.token_ids)) for r in g.requests) for g in (ahead, after)]
    assert asked[0] == asked[1]


def test_requests_have_ids_of_their_own_where_a_helper_takes_several_turns(renderer):
    generator = Echo(renderer, together=2)
    play(renderer, Slowly, generator)
    assert [r.agent for r in generator.requests] == ["", "h/1", "h/2", "h/1", ""]
    assert len({r.id for r in generator.requests}) == 5


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Otherwise, "agent 'h/2' is addressed with other messages or tools than were said ahead"),
        (Known, "ahead: agent 'h/1' is no new one"),
    ],
)
def test_an_environment_that_says_something_else_than_it_said_ahead_fails(renderer, env, message):
    (failed,) = play(renderer, env, Echo(renderer))
    assert failed.failure is FailureClass.ENVIRONMENT
    assert message in failed.error


def test_a_turn_that_cannot_be_sampled_fails_its_episode_once_it_is_needed(renderer):
    (failed,) = play(renderer, Three, Echo(renderer, fails="h/3"))
    assert failed.failure is FailureClass.INFRASTRUCTURE
    assert "the engine is gone" in failed.error


def test_what_is_being_sampled_when_the_episode_ends_is_given_up(renderer):
    generator = Echo(renderer, together=3, slow=("h/2", "h/3"))
    main, first = play(renderer, Leaving, generator)
    assert main.success is False
    assert first.info["agent_name"] == "h/1"
    assert sorted(generator.given_up) == ["h/2", "h/3"]
