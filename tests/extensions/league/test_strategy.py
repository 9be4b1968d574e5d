"""Groups against a past version: it plays one side, and only the other side's trajectories are left."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.envs.nim.env import Nim
from asyncrl.extensions.league.opponent import NEWEST, Opponent, opponent_extra
from asyncrl.extensions.league.strategy import Opponents, learners_part
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.strategies.parts import FurtherPolicy
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import OPPONENT, FailureClass, Lease, Status, Task
from tests.buffer.factories import trajectory

NEWEST_VERSION = 9


class Engines:
    """Says the same move every time, under the version that was asked for."""

    def __init__(self, renderer, move):
        self.ids = renderer.assistant({"role": "assistant", "content": move})
        self.asked = []

    async def generate(self, request):
        self.asked.append((request.agent, request.version))
        version = NEWEST_VERSION if request.version is None else request.version
        size = len(self.ids)
        return Generated(self.ids, np.full(size, -0.5, np.float32), np.full(size, version, np.int32), "stop")


def play(renderer, opponent, move="a 1", seed=0):
    engines = Engines(renderer, move)
    settings = EpisodeSettings(Limits(0, 100, 2000))

    player = ChatPlayer(engines, LocalEnvs(), renderer, parse_hermes, settings)
    runner = EpisodeGroupRunner(player, [Opponents(engines)])
    lease = Lease(
        "g",
        Task("train-0", "nim", seed),
        NEWEST_VERSION,
        NEWEST_VERSION,
        2,
        1,
        60.0,
        extras=opponent_extra(opponent),
    )
    return asyncio.run(runner.run_group(lease, "w", 30.0)), engines.asked


def test_without_an_opponent_both_sides_are_the_policys_and_are_kept(renderer):
    group, asked = play(renderer, None)
    assert [(t.rollout, t.info.get("agent", "")) for t in group.trajectories] == [
        (0, ""), (1, ""), (0, "second"), (1, "second"),
    ]  # fmt: skip
    assert {version for _, version in asked} == {None}
    assert sum(t.reward for t in group.trajectories) == 0.0


@pytest.mark.parametrize(("main", "kept"), [(True, "second"), (False, "")])
def test_a_past_version_plays_one_side_and_none_of_its_tokens_are_left(renderer, main, kept):
    group, asked = play(renderer, Opponent(4, main))
    assert set(asked) == {("", 4 if main else None), ("second", None if main else 4)}
    assert [(t.episode_index, t.rollout, t.info.get("agent", "")) for t in group.trajectories] == [
        (0, 0, kept), (1, 1, kept),
    ]  # fmt: skip
    for t in group.trajectories:
        assert set(t.versions[t.loss_mask].tolist()) == {NEWEST_VERSION}
        assert t.info[OPPONENT] == 4
        assert t.reward in (1.0, -1.0)


def test_an_episode_in_which_the_learner_has_not_spoken_has_no_tokens_to_train(renderer):
    group, _ = play(renderer, Opponent(4, main=True), move="nonsense")
    assert [(t.rollout, t.num_sampled, t.usable) for t in group.trajectories] == [
        (0, 0, False),
        (1, 0, False),
    ]


def test_an_episode_that_failed_stays_a_failure_whoever_played_the_main_agent():
    failed = trajectory("t", 0, failure=FailureClass.INFRASTRUCTURE)
    ((part,),) = learners_part([(failed,)], Opponent(1, main=True))
    assert (part.status, part.failure) == (Status.FAILED, FailureClass.INFRASTRUCTURE)


class Buffer:
    """A buffer that hands out one slot and keeps what is put under it."""

    def __init__(self, slot):
        self.slot, self.put_groups, self.released = slot, [], []

    async def lease(self, worker, wait_s):
        return self.slot

    async def renew(self, lease_id):
        return 60.0

    async def release(self, lease_id):
        self.released.append(lease_id)

    async def put(self, group):
        self.put_groups.append(group)

    async def status(self):
        return {"plan_closed": self.slot is None}


SLOT = Lease("slot", Task("slot-0", "nim"), 3, 3, 2, 1, 60.0, order=8)


def play_exploiter(renderer, opponent, slot=SLOT, move="a 1", seed=0, limits=None, next_states=False):
    """Play a group; return it, what was asked of the policy's engines and of the exploiter's, and its buffer."""
    engines, rival = Engines(renderer, move), Engines(renderer, move)
    settings = EpisodeSettings(limits or Limits(0, 100, 2000))
    buffer = Buffer(slot)
    requests = []

    class Asked:
        async def generate(self, request):
            requests.append(request)
            return await rival.generate(request)

    player = ChatPlayer(engines, LocalEnvs(), renderer, parse_hermes, settings)
    exploiter = FurtherPolicy("rival", frozenset(), Asked(), buffer)
    runner = EpisodeGroupRunner(player, [Opponents(engines, exploiter, states=next_states)])
    lease = Lease(
        "g",
        Task("train-0", "nim", seed),
        NEWEST_VERSION,
        NEWEST_VERSION,
        2,
        1,
        60.0,
        extras=opponent_extra(opponent),
    )
    return asyncio.run(runner.run_group(lease, "w", 30.0)), engines.asked, requests, buffer


@pytest.mark.parametrize(("main", "own", "policys"), [(True, "", "second"), (False, "second", "")])
def test_an_exploiters_side_goes_to_its_buffer_and_the_other_sides_to_the_policy(
    renderer, main, own, policys
):
    group, asked, requests, buffer = play_exploiter(renderer, Opponent(NEWEST, main, "rival"))
    assert set(asked) == {(policys, None)}
    assert {(r.agent, r.version, r.min_version, r.order) for r in requests} == {(own, None, 3, 8)}
    (part,) = buffer.put_groups
    assert (part.id, part.version, part.task) == ("slot", 3, SLOT.task)
    assert [(t.rollout, t.info.get("agent", "")) for t in part.trajectories] == [(0, own), (1, own)]
    assert [(t.rollout, t.info.get("agent", "")) for t in group.trajectories] == [(0, policys), (1, policys)]
    assert {t.info[OPPONENT] for t in group.trajectories} == {"rival"}
    assert all(OPPONENT not in t.info for t in part.trajectories)
    # Who wins is what the other one loses.
    for mine, other in zip(part.trajectories, group.trajectories, strict=True):
        assert mine.reward == -other.reward != 0


def test_of_a_past_version_that_meets_an_exploiter_only_the_rewards_are_left(renderer):
    opponent = Opponent(NEWEST, main=True, policy="rival", against=4)
    group, asked, _, buffer = play_exploiter(renderer, opponent)
    assert set(asked) == {("second", 4)}
    (part,) = buffer.put_groups
    assert {t.info[OPPONENT] for t in part.trajectories} == {4}
    assert [(t.num_sampled, t.usable) for t in group.trajectories] == [(0, False), (0, False)]
    assert [t.reward for t in group.trajectories] == [-t.reward for t in part.trajectories]


def test_a_copy_of_an_exploiter_is_asked_of_engines_that_have_a_later_version(renderer):
    group, asked, requests, buffer = play_exploiter(renderer, Opponent(6, main=True, policy="rival"))
    assert set(asked) == {("second", None)}
    assert {(r.version, r.min_version) for r in requests} == {(6, 7)}
    assert buffer.put_groups == []
    assert {t.info[OPPONENT] for t in group.trajectories} == {"rival/6"}


def test_an_exploiter_whose_training_has_ended_still_plays(renderer):
    group, _, requests, buffer = play_exploiter(renderer, Opponent(NEWEST, True, "rival"), slot=None)
    assert {(r.version, r.min_version) for r in requests} == {(None, 0)}
    assert buffer.put_groups == []
    assert len(group.trajectories) == 2


def starts_with(things):
    """Return a task's seed for which so many things are on the heap, modulo 2."""
    found = (seed for seed in range(50) if Nim(Task("t", "nim", seed)).heaps.left[0] % 2 == things)
    return next(found)


def states(trajectory):
    """Return the tokens of the state of the other side after each turn."""
    noted = trajectory.extras["next_states"]
    assert len(noted.after) == len(trajectory.turns)
    return [
        None if place is None else noted.token_ids[place[0]][: place[1]].tolist() for place in noted.after
    ]


def prompts(trajectory):
    """Return what was read before each turn."""
    return [trajectory.token_ids[: turn.start].tolist() for turn in trajectory.turns]


@pytest.mark.parametrize("against", [None, 4])
@pytest.mark.parametrize("main", [True, False], ids=["moves_first", "moves_second"])
@pytest.mark.parametrize("odd", [0, 1])
def test_an_exploiter_is_told_in_which_states_the_policy_moves_after_its_turns(renderer, main, odd, against):
    """One thing is taken at a time, so whoever moves first ends the game where the number is odd."""
    opponent = Opponent(NEWEST, main, "rival", against)
    group, _, _, buffer = play_exploiter(renderer, opponent, seed=starts_with(odd), next_states=True)
    whole, _ = play(renderer, None, seed=starts_with(odd))
    (part,) = buffer.put_groups
    assert all("next_states" not in t.extras for t in (*group.trajectories, *whole.trajectories))
    for mine in part.trajectories:
        other = next(t for t in whole.trajectories if (t.info.get("agent") is None) != main)
        later = prompts(other) if main else prompts(other)[1:]
        ends = main == bool(odd)
        assert len(mine.turns) > 2 and states(mine) == later + [None] * ends
        assert mine.reward == (1.0 if ends else -1.0)
        # Nothing beyond the last state is kept.
        assert [len(ids) for ids in mine.extras["next_states"].token_ids] == [len(later[-1])]


def test_a_game_cut_off_before_the_policys_turn_still_has_that_state(renderer):
    cut = {"seed": starts_with(0), "next_states": True, "limits": Limits(3, 100, 2000)}
    opponent = Opponent(NEWEST, True, "rival")
    group, _, _, buffer = play_exploiter(renderer, opponent, **cut)
    mine, other = buffer.put_groups[0].trajectories[0], group.trajectories[0]
    assert (mine.status, len(mine.turns), len(other.turns)) == (Status.TRUNCATED, 2, 1)
    assert states(mine) == [*prompts(other), other.token_ids.tolist()]


def test_a_state_that_is_too_long_to_be_answered_is_none(renderer):
    opponent, seed = Opponent(NEWEST, False, "rival"), starts_with(1)
    _, _, _, buffer = play_exploiter(renderer, opponent, seed=seed, next_states=True)
    longest = len(states(buffer.put_groups[0].trajectories[0])[-1])
    limits = Limits(0, 100, longest)
    _, _, _, buffer = play_exploiter(renderer, opponent, seed=seed, next_states=True, limits=limits)
    mine = buffer.put_groups[0].trajectories[0]
    assert (mine.status, mine.error) == (Status.TRUNCATED, "max_tokens")
    assert states(mine)[-1] is None and states(mine)[0] is not None


def test_an_illegal_first_move_ends_the_game_without_a_state(renderer):
    opponent = Opponent(NEWEST, True, "rival")
    _, _, _, buffer = play_exploiter(renderer, opponent, move="nonsense", next_states=True)
    assert [states(t) for t in buffer.put_groups[0].trajectories] == [[None], [None]]
    # Where it was to move second, it has not spoken.
    opponent = Opponent(NEWEST, False, "rival")
    _, _, _, buffer = play_exploiter(renderer, opponent, move="nonsense", next_states=True)
    assert [(t.num_sampled, t.extras) for t in buffer.put_groups[0].trajectories] == [(0, {})] * 2


def test_states_are_noted_only_where_they_are_asked_for(renderer):
    _, _, _, buffer = play_exploiter(renderer, Opponent(NEWEST, True, "rival"))
    assert all("next_states" not in t.extras for t in buffer.put_groups[0].trajectories)
