"""Episodes and groups: limits, failures, retries. The engine is a scripted stand-in behind its own interface."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.data.transcript import read_transcript
from asyncrl.env.protocol import Env, Step
from asyncrl.errors import AgentError, InfrastructureError
from asyncrl.extensions.branches.strategy import Branches
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import FailureClass, Lease, Status, Task

HERE = __name__


class Scripted:
    """Answers every turn with one word, under a version that counts the calls; fails the first `failures`."""

    def __init__(self, renderer, word="north", failures=0, cut=False):
        self.ids = renderer.assistant({"role": "assistant", "content": word})
        self.calls, self.failures, self.cut = 0, failures, cut
        self.requests = []

    async def generate(self, request):
        self.calls += 1
        self.requests.append(request)
        if self.calls <= self.failures:
            raise InfrastructureError("the engine is gone")
        ids = self.ids[: request.max_tokens]
        reason = "length" if self.cut or len(ids) < len(self.ids) else "stop"
        return Generated(
            ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), self.calls, np.int32), reason
        )


class Endless(Env):
    blocking = False
    max_turns = 50

    def reset(self):
        return [{"role": "user", "content": "goal"}]

    def step(self, action):
        return Step([{"role": "user", "content": "goal"}], reward=0.25, components={"steps": 1.0})


class Broken(Endless):
    def step(self, action):
        raise RuntimeError("the simulator crashed")


class Fragile(Endless):
    """Breaks in the first `breaks` sessions."""

    breaks = 0

    def step(self, action):
        if type(self).breaks:
            type(self).breaks -= 1
            raise RuntimeError("the simulator crashed")
        return super().step(action)


class Strict(Endless):
    def step(self, action):
        raise AgentError("no such move")


class Cut(Endless):
    def step(self, action):
        return Step(done=True, truncated=True)


def make_player(renderer, generator, envs=None, judging=None, **limits):
    bounds = Limits(**{"max_turns": 0, "max_tokens_per_turn": 16, "max_tokens": 200, **limits})
    settings = EpisodeSettings(bounds, seed=7, check_history=True)
    return ChatPlayer(
        generator, envs or LocalEnvs(), renderer, parse_hermes, settings, [judging] if judging else []
    )


def play(player, env="Endless"):
    return asyncio.run(player.play(EpisodeRequest(Task("t", f"{HERE}:{env}", 0), 0, "e")))[0]


def test_an_episode_beyond_the_turn_limit_is_truncated_and_keeps_its_reward(renderer):
    trajectory = play(make_player(renderer, Scripted(renderer), max_turns=3))
    assert (trajectory.status, trajectory.error, trajectory.reward) == (Status.TRUNCATED, "max_turns", 0.75)
    assert trajectory.components == {"steps": 3.0}
    assert len(trajectory.turns) == 3


def test_an_episode_beyond_the_context_is_truncated_and_never_longer(renderer):
    trajectory = play(make_player(renderer, Scripted(renderer), max_tokens=40))
    assert trajectory.status is Status.TRUNCATED
    assert trajectory.error in ("max_tokens", "max_tokens_per_turn")
    assert trajectory.num_tokens <= 40


@pytest.mark.parametrize("max_turns", [0, 2])
def test_an_unread_observation_beyond_the_limit_is_left_out(renderer, max_turns):
    """Otherwise the trajectory, and with it its whole group, would be too long to train."""
    whole = play(make_player(renderer, Scripted(renderer), max_turns=3))
    limit = whole.turns[1].end + 1
    cut = play(make_player(renderer, Scripted(renderer), max_tokens=limit, max_turns=max_turns))
    assert (cut.status, cut.error) == (Status.TRUNCATED, "max_turns" if max_turns else "max_tokens")
    assert cut.token_ids.tolist() == whole.token_ids[: cut.turns[1].end].tolist()
    assert len(cut.token_ids) == len(cut.loss_mask) == len(cut.behavior_logprobs) == len(cut.versions)
    assert cut.info["history_matches"]


def test_a_turn_cut_by_its_own_limit_truncates_the_episode(renderer):
    trajectory = play(make_player(renderer, Scripted(renderer, cut=True)))
    assert (trajectory.status, trajectory.error) == (Status.TRUNCATED, "max_tokens_per_turn")


def test_arrays_are_parallel_and_only_sampled_tokens_carry_versions(renderer):
    t = play(make_player(renderer, Scripted(renderer), max_turns=2))
    assert len(t.token_ids) == len(t.loss_mask) == len(t.behavior_logprobs) == len(t.versions)
    for number, turn in enumerate(t.turns, 1):
        assert t.loss_mask[turn.start : turn.end].all()
        assert set(t.versions[turn.start : turn.end].tolist()) == {number}
    assert (t.versions[~t.loss_mask] == -1).all()
    assert (t.behavior_logprobs[~t.loss_mask] == 0).all()
    assert t.num_sampled == sum(turn.end - turn.start for turn in t.turns)


def test_each_turn_sends_exactly_the_tokens_of_the_trajectory_so_far(renderer):
    generator = Scripted(renderer)
    t = play(make_player(renderer, generator, max_turns=3))
    for request, turn in zip(generator.requests, t.turns, strict=True):
        assert request.token_ids.tolist() == t.token_ids[: turn.start].tolist()
    assert len({r.seed for r in generator.requests}) == 3


def test_an_episode_notes_where_the_template_would_have_rewritten_its_history(renderer):
    t = play(make_player(renderer, Scripted(renderer), max_turns=3))
    assert (t.info["history_matches"], t.info["history_forks"]) == (True, 0)
    t = play(make_player(renderer, Scripted(renderer, cut=True)))
    assert (t.info["history_matches"], t.info["history_forks"]) == (True, 0)
    # The parser strips the blank that the model wrote, so the next prompt would have begun otherwise.
    t = play(make_player(renderer, Scripted(renderer, word="north "), max_turns=3))
    assert (t.info["history_matches"], t.info["history_forks"]) == (False, 2)


def test_an_environment_that_raises_fails_the_episode_as_its_own_fault(renderer):
    t = play(make_player(renderer, Scripted(renderer)), "Broken")
    assert (t.status, t.failure, t.usable) == (Status.FAILED, FailureClass.ENVIRONMENT, False)
    assert "the simulator crashed" in t.error


def test_a_lost_engine_fails_the_episode_as_infrastructure(renderer):
    t = play(make_player(renderer, Scripted(renderer, failures=99)))
    assert (t.status, t.failure, t.usable) == (Status.FAILED, FailureClass.INFRASTRUCTURE, False)


@pytest.mark.parametrize(("failures", "usable"), [(2, True), (99, False)])
def test_a_group_runs_an_episode_again_when_infrastructure_failed_it(renderer, failures, usable, monkeypatch):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    player = make_player(renderer, Scripted(renderer, failures=failures), max_turns=1)
    lease = Lease("g", Task("t", f"{HERE}:Endless", 0), 0, 1, 1, 1, 60.0)
    group = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 30.0))
    assert [t.usable for t in group.trajectories] == [usable]
    assert group.trajectories[0].info["attempts"] == 3


@pytest.mark.parametrize(("breaks", "usable", "attempts"), [(0, True, None), (1, True, 2), (2, False, 2)])
def test_an_episode_the_environment_fails_gets_one_fresh_session_and_is_then_left_out(
    renderer, monkeypatch, breaks, usable, attempts
):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    Fragile.breaks = breaks
    player = make_player(renderer, Scripted(renderer), max_turns=1)
    lease = Lease("g", Task("t", f"{HERE}:Fragile", 0), 0, 1, 1, 1, 60.0)
    trajectory = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 30.0)).trajectories[0]
    assert (trajectory.usable, trajectory.info.get("attempts")) == (usable, attempts)
    assert trajectory.failure is (None if usable else FailureClass.ENVIRONMENT)
    assert trajectory.reward == (0.25 if usable else 0.0)


def test_what_the_agent_did_wrong_is_a_result_and_is_not_played_again(renderer):
    player = make_player(renderer, Scripted(renderer))
    lease = Lease("g", Task("t", f"{HERE}:Strict", 0), 0, 1, 1, 1, 60.0)
    trajectory = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 30.0)).trajectories[0]
    assert (trajectory.status, trajectory.usable, trajectory.success) == (Status.FINISHED, True, False)
    assert trajectory.components == {"agent_error": 1.0}
    assert "attempts" not in trajectory.info


def test_an_episode_the_environment_cuts_off_is_truncated_not_failed(renderer):
    trajectory = play(make_player(renderer, Scripted(renderer)), "Cut")
    assert (trajectory.status, trajectory.error) == (Status.TRUNCATED, "environment")
    assert (trajectory.failure, trajectory.usable) == (None, True)


@pytest.mark.parametrize(("max_turns", "turns"), [(0, 3), (2, 2), (9, 3)])
def test_a_lease_may_allow_fewer_turns_than_the_run_and_not_more(renderer, max_turns, turns):
    player = make_player(renderer, Scripted(renderer), max_turns=3)
    lease = Lease("g", Task("t", f"{HERE}:Endless", 0), 0, 1, 2, 1, 60.0, max_turns=max_turns)
    group = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 30.0))
    assert [(len(t.turns), t.status, t.error) for t in group.trajectories] == [
        (turns, Status.TRUNCATED, "max_turns")
    ] * 2


class StuckEnvs(LocalEnvs):
    """Sessions whose first step takes a minute."""

    async def open(self, task, config):
        session = await super().open(task, config)

        async def step(*args):
            await asyncio.sleep(60)

        session.step = step
        return session


def test_an_episode_that_does_not_end_in_time_is_an_infrastructure_failure(renderer, monkeypatch):
    monkeypatch.setattr("asyncrl.rollout.player.MAX_ATTEMPTS", {})
    player = make_player(renderer, Scripted(renderer), StuckEnvs())
    lease = Lease("g", Task("t", f"{HERE}:Endless", 0), 0, 1, 1, 1, 60.0)
    group = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 0.05))
    assert group.trajectories[0].failure is FailureClass.INFRASTRUCTURE
    assert "episode_timeout_s" in group.trajectories[0].error


class Needy(Endless):
    """Its settings allow what the agent starts so much time."""

    def __init__(self, task, needs_s=0.0):
        self.needs_s = needs_s

    def least_step_s(self):
        return self.needs_s


@pytest.mark.parametrize(
    ("given_s", "needs_s", "limit_s"), [(None, 0.0, 30.0), (None, 4000.0, 4000.0), (5.0, 4000.0, 5.0)]
)
def test_a_step_may_take_as_long_as_the_recipe_says_or_else_as_its_environment_needs(
    renderer, given_s, needs_s, limit_s
):
    limits = []

    class Watched(LocalEnvs):
        async def open(self, task, config):
            session = await super().open(task, config)
            step = session.step

            async def watched(index, action, timeout_s):
                limits.append(timeout_s)
                return await step(index, action, timeout_s)

            session.step = watched
            return session

    settings = EpisodeSettings(
        Limits(2, 16, 200), seed=7, step_timeout_s=given_s, env_config={"needs_s": needs_s}
    )
    player = ChatPlayer(Scripted(renderer), Watched(), renderer, parse_hermes, settings, [])
    lease = Lease("g", Task("t", f"{HERE}:Needy", 0), 0, 1, 1, 1, 60.0)
    asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 30.0))
    assert limits == [limit_s] * 2


class Slow(Scripted):
    """An engine that is shared by many."""

    async def generate(self, request):
        await asyncio.sleep(0.7)
        return await super().generate(request)


def test_the_time_that_engines_take_for_turns_is_none_of_the_episodes(renderer, monkeypatch):
    monkeypatch.setattr("asyncrl.rollout.player.MAX_ATTEMPTS", {})
    lease = Lease("g", Task("t", f"{HERE}:Endless", 0), 0, 1, 1, 1, 60.0)
    player = make_player(renderer, Slow(renderer), max_turns=2)
    trajectory = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 0.6)).trajectories[0]
    assert (trajectory.failure, len(trajectory.turns)) == (None, 2)
    # What is left of it goes on after a turn.
    player = make_player(renderer, Slow(renderer), StuckEnvs(), max_turns=2)
    trajectory = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 0.6)).trajectories[0]
    assert (trajectory.failure, trajectory.turns) == (FailureClass.INFRASTRUCTURE, ())


def test_the_wait_for_a_session_is_no_time_of_the_episodes(renderer):
    class Waiting(LocalEnvs):
        async def open(self, task, config):
            await asyncio.sleep(1.0)
            return await super().open(task, config)

    player = make_player(renderer, Scripted(renderer), Waiting(), max_turns=1)
    lease = Lease("g", Task("t", f"{HERE}:Endless", 0), 0, 1, 1, 1, 60.0)
    trajectory = asyncio.run(EpisodeGroupRunner(player).run_group(lease, "w", 0.9)).trajectories[0]
    assert (trajectory.usable, trajectory.info.get("attempts")) == (True, None)


def conversation_of(trajectory):
    """The messages as they are written: role, content and the number of the turn."""
    messages = read_transcript(trajectory.conversation, [turn.reward for turn in trajectory.turns])
    return [(m["role"], m["content"], m["turn"]) for m in messages]


GOAL = ("user", "goal", None)


def test_an_episode_keeps_its_conversation_with_the_turn_that_each_message_is(renderer):
    trajectory = play(make_player(renderer, Scripted(renderer), max_turns=2))
    assert conversation_of(trajectory) == [
        GOAL, ("assistant", "north", 0), GOAL, ("assistant", "north", 1), GOAL,
    ]  # fmt: skip


def test_a_turn_that_was_cut_ends_the_conversation(renderer):
    trajectory = play(make_player(renderer, Scripted(renderer, cut=True)))
    assert conversation_of(trajectory) == [GOAL, ("assistant", "north", 0)]


def test_an_episode_that_fails_keeps_what_was_said(renderer):
    trajectory = play(make_player(renderer, Scripted(renderer)), "Broken")
    assert trajectory.failure is FailureClass.ENVIRONMENT
    assert conversation_of(trajectory) == [GOAL, ("assistant", "north", 0)]


def test_a_malformed_call_is_kept_as_it_was_written(renderer):
    word = 'so <tool_call>{"name": </tool_call>'
    trajectory = play(
        make_player(renderer, Scripted(renderer, word=word), max_turns=1, max_tokens_per_turn=64)
    )
    assert conversation_of(trajectory)[1] == ("assistant", word, 0)


def test_a_branch_keeps_the_turns_it_was_given_in_its_conversation(renderer):
    settings = EpisodeSettings(Limits(2, 16, 200))
    player = ChatPlayer(Scripted(renderer), LocalEnvs(), renderer, parse_hermes, settings)
    lease = Lease("g", Task("t", f"{HERE}:Endless", 0), 0, 1, 2, 1, 60.0)
    parent, leaf = asyncio.run(
        EpisodeGroupRunner(player, [Branches(1)]).run_group(lease, "w", 30.0)
    ).trajectories
    assert leaf.info["branch_turn"] == 1
    assert conversation_of(leaf) == conversation_of(parent)
