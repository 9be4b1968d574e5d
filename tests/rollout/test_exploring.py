"""Groups that are explored first: who plays what, under which seeds, and what is left of the candidates."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits, sampling_seed
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.env.protocol import Env, Step
from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.exploring import ExploringRunner, episode_seed
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.worker import WorkerCounters
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import EXPLORED, FailureClass, Lease, Task

TASK = Task("t", f"{__name__}:Counting")
LOW, HIGH = 1, 2
"""Versions by which the tokens of the two kinds of engines are told apart."""
LEASE = Lease("g", TASK, 0, 1, 2, 1, 60.0, order=5, max_turns=2)


class Counting(Env):
    """Two turns; each says a digit, and the reward is what the second says."""

    blocking = False

    def reset(self):
        self.turns = 0
        return [{"role": "user", "content": "goal"}]

    def step(self, action):
        self.turns += 1
        last = self.turns == 2
        return Step(
            [{"role": "user", "content": "more"}], reward=float(action.content) if last else 0.0, done=last
        )


class Engines:
    """Says the digit that `says` has for a turn's seed, and fails for seeds without one."""

    def __init__(self, renderer, version, says):
        self.renderer, self.version, self.says = renderer, version, says
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        if request.seed not in self.says:
            raise InfrastructureError("the engine is gone")
        ids = self.renderer.assistant({"role": "assistant", "content": str(self.says[request.seed])})
        size = len(ids)
        return Generated(
            ids, np.full(size, -0.1 * self.version, np.float32), np.full(size, self.version, np.int32), "stop"
        )


def turn_seeds(index, lease=LEASE):
    return [sampling_seed(episode_seed(7, lease, index), "t", 0, turn) for turn in range(2)]


def says(digits, lease=LEASE):
    """What an engine says whose candidate i earns `digits[i]`; None fails."""
    return {
        seed: digit
        for index, digit in enumerate(digits)
        if digit is not None
        for seed in turn_seeds(index, lease)
    }


def explore(renderer, low, high, lease=LEASE, **options):
    """Play a group of two of len(low) candidates; return it with the engines of both kinds."""
    engines = [Engines(renderer, LOW, says(low, lease)), Engines(renderer, HIGH, says(high, lease))]
    settings = EpisodeSettings(Limits(0, 16, 200), seed=3)
    explorer, player = (ChatPlayer(one, LocalEnvs(), renderer, parse_hermes, settings) for one in engines)
    runner = ExploringRunner(explorer, EpisodeGroupRunner(player, **options), len(low), 7)
    return asyncio.run(runner.run_group(lease, "w", 20.0)), *engines


def test_the_best_and_the_worst_candidate_are_played_again_and_they_alone_are_the_group(renderer):
    digits = (3, 5, 1, 4)
    group, low, high = explore(renderer, digits, digits)
    assert [t.reward for t in group.trajectories] == [5.0, 1.0]
    assert [t.episode_index for t in group.trajectories] == [0, 1]
    for t in group.trajectories:
        assert set(t.versions[t.loss_mask].tolist()) == {HIGH}
        assert t.behavior_logprobs[t.loss_mask].tolist() == pytest.approx([-0.2] * t.num_sampled)
    seeds = [seed for index in range(4) for seed in turn_seeds(index)]
    assert sorted(r.seed for r in low.requests) == sorted(seeds)
    assert sorted(r.seed for r in high.requests) == sorted(turn_seeds(1) + turn_seeds(2))
    # None of both shares a conversation, which would tie it to an engine.
    assert not {r.session for r in low.requests} & {r.session for r in high.requests}
    assert {(r.order, r.min_version) for r in low.requests + high.requests} == {(5, 0)}


def test_the_reward_is_that_of_the_second_playing_and_both_are_compared(renderer):
    group, low, _ = explore(renderer, (3, 5, 1, 4), (3, 5, 6, 4))
    assert [t.reward for t in group.trajectories] == [5.0, 6.0]
    sampled = sum(len(low.renderer.assistant({"role": "assistant", "content": d})) * 2 for d in "3514")
    common = {"candidates": 4, "tokens": sampled, "contrast": True}
    assert [t.info[EXPLORED] for t in group.trajectories] == [
        common | {"reward": 5.0, "same_tokens": True},
        common | {"reward": 1.0, "same_tokens": False},
    ]
    counters = WorkerCounters()
    counters.add(group)
    assert (counters.explored_groups, counters.contrast_groups, counters.candidates) == (1, 1, 4)
    assert counters.candidate_tokens == sampled
    assert counters.sampled_tokens == sum(t.num_sampled for t in group.trajectories)


def test_without_a_contrast_the_group_is_played_as_usual_and_may_end_early(renderer):
    group, _, high = explore(renderer, (2, 2, 2), (2, 3, 2))
    assert [t.reward for t in group.trajectories] == [2.0, 3.0]
    assert [t.info[EXPLORED]["contrast"] for t in group.trajectories] == [False, False]
    of_three = Lease("g", TASK, 0, 1, 3, 1, 60.0)
    group, _, high = explore(renderer, (2,) * 4, (2,) * 4, of_three, decide_after=2)
    assert len(group.trajectories) == 2 and len(high.requests) == 4
    group, _, high = explore(renderer, (2, 2, 2, 1), (2, 2, 2, 1), of_three, decide_after=2)
    assert [t.reward for t in group.trajectories] == [2.0, 1.0, 2.0]


def test_a_candidate_that_fails_is_none_and_its_seed_is_used_only_where_others_are_too_few(
    renderer, monkeypatch
):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    group, low, _ = explore(renderer, (None, 1, 4), (0, 1, 4))
    assert [t.reward for t in group.trajectories] == [4.0, 1.0]
    assert group.trajectories[0].info[EXPLORED]["candidates"] == 2
    # It had the attempts of an episode.
    assert [r.seed for r in low.requests].count(turn_seeds(0)[0]) == 3
    group, _, _ = explore(renderer, (None, None, 4), (9, 1, 4))
    assert [t.reward for t in group.trajectories] == [4.0, 9.0]
    assert [t.info[EXPLORED]["same_tokens"] for t in group.trajectories] == [True, None]
    assert [t.info[EXPLORED]["reward"] for t in group.trajectories] == [4.0, None]


def test_explorers_that_are_gone_cost_the_group_nothing(renderer, monkeypatch):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    group, _, _ = explore(renderer, (None, None, None), (3, 5, 1))
    assert [t.reward for t in group.trajectories] == [3.0, 5.0]
    assert group.trajectories[0].info[EXPLORED] == {
        "candidates": 0, "tokens": 0, "contrast": False, "reward": None, "same_tokens": None,
    }  # fmt: skip


def test_an_episode_that_fails_when_it_is_played_again_is_a_failed_one(renderer, monkeypatch):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    group, _, _ = explore(renderer, (3, 5, 1), (3, 5, None))
    assert [t.failure for t in group.trajectories] == [None, FailureClass.INFRASTRUCTURE]
    assert [t.usable for t in group.trajectories] == [True, False]


def test_a_group_as_large_as_its_candidates_is_played_as_usual(renderer):
    settings = EpisodeSettings(Limits(0, 16, 200), seed=3)
    usual = {sampling_seed(3, "t", index, turn): 4 for index in range(2) for turn in range(2)}
    low, high = Engines(renderer, LOW, {}), Engines(renderer, HIGH, usual)
    explorer, player = (ChatPlayer(one, LocalEnvs(), renderer, parse_hermes, settings) for one in (low, high))
    runner = ExploringRunner(explorer, EpisodeGroupRunner(player), 2, 7)
    group = asyncio.run(runner.run_group(LEASE, "w", 20.0))
    assert [t.reward for t in group.trajectories] == [4.0, 4.0]
    assert not low.requests and EXPLORED not in group.trajectories[0].info


def test_seeds_repeat_and_differ_by_run_task_attempt_and_place():
    base = episode_seed(7, LEASE, 0)
    assert base == episode_seed(7, Lease("other", TASK, 3, 9, 2, 1, 5.0), 0)
    others = [
        episode_seed(8, LEASE, 0),
        episode_seed(7, Lease("g", Task("u", "e"), 0, 1, 2, 1, 60.0), 0),
        episode_seed(7, Lease("g", TASK, 0, 1, 2, 2, 60.0), 0),
        episode_seed(7, LEASE, 1),
    ]
    assert len({base, *others}) == 5
