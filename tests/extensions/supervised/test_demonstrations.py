"""Scripted episodes: what a supervised start sees is what a rollout will build."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from asyncrl.env.protocol import Env, Step
from asyncrl.env.registry import load_env
from asyncrl.errors import ConfigError
from asyncrl.extensions.supervised.demonstrations import demonstrations, encode
from asyncrl.extensions.supervised.sft import one_cycle


@pytest.mark.parametrize("env", ["gridworld", "calculator"])
def test_oracle_episodes_earn_one_and_every_assistant_turn_is_masked_in(env, renderer):
    demos = list(demonstrations(load_env(env), env, {}, 30, 1.0, 0))
    assert [d.reward for d in demos] == [1.0] * 30
    for demo in demos:
        encoded = encode(renderer, demo)
        ids, mask = encoded.ids, encoded.mask
        turns = [m for m in demo.messages if m["role"] == "assistant"]
        starts = np.flatnonzero(mask & ~np.roll(mask, 1))
        assert len(starts) == len(turns)
        assert (ids[mask] == renderer.stop_token_ids[0]).sum() == len(turns)
        fresh = renderer.tokenizer.apply_chat_template(
            demo.messages, tools=demo.tools or None, tokenize=False
        )
        assert renderer.tokenizer.decode(ids.tolist()) == fresh.rstrip("\n")


def test_the_same_seed_plays_the_same_episodes():
    env = load_env("gridworld")
    first, second, other = (list(demonstrations(env, "gridworld", {}, 20, 0.5, seed)) for seed in (1, 1, 2))
    assert first == second
    assert first != other


class Meeting(Env):
    """An episode that ends when as many as are played at once are in it."""

    inside = asyncio.Event()
    waiting = 0

    async def reset(self):
        return [{"role": "user", "content": str(self.task.seed)}]

    async def step(self, action):
        Meeting.waiting += 1
        if Meeting.waiting % 3 == 0:
            Meeting.inside.set()
        await asyncio.wait_for(Meeting.inside.wait(), 10)
        return Step(reward=1.0, done=True)

    def random_policy(self, messages, rng):
        return {"role": "assistant", "content": str(rng.random())}


def test_episodes_played_at_once_come_in_the_order_of_their_tasks():
    demos = list(demonstrations(Meeting, "meeting", {}, 6, 0.0, 0, concurrency=3))
    assert [d.messages[0]["content"] for d in demos] == ["0", "2", "4", "6", "8", "10"]
    assert len({d.messages[1]["content"] for d in demos}) == 6


def test_episodes_played_at_once_are_the_same_for_the_same_seed():
    env = load_env("gridworld")
    first, second, other = (
        list(demonstrations(env, "gridworld", {}, 20, 0.5, seed, concurrency=8)) for seed in (1, 1, 2)
    )
    assert len(first) == 20
    assert first == second
    assert first != other


def test_an_environment_without_scripted_policies_is_refused_by_what_it_lacks():
    from tests.train.silent_env import Silent

    with pytest.raises(ConfigError, match="has no oracle"):
        list(demonstrations(Silent, "silent", {}, 1, 1.0, 0))


def test_the_learning_rate_rises_then_falls_to_a_hundredth():
    factors = [one_cycle(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == 1.0
    assert factors[-1] == pytest.approx(0.01, abs=2e-3)
    assert all(a >= b for a, b in pairwise(factors[10:]))
