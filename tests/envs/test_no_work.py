"""An agent that does no work earns nothing, in any environment that comes along (open-range#366, WildClawBench#24)."""

import asyncio

import pytest

from asyncrl.env.protocol import Action
from asyncrl.env.registry import ENVS
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Task

OF_OTHERS = frozenset({"gymnasium", "mcp", "openenv", "reasoning_gym", "tau2", "textarena", "textworld", "verifiers",
                       "tinker_cookbook", "verifiers_v1"})  # fmt: skip
"""Adapters: what those environments reward is theirs."""
OF_ROWS = frozenset({"dataset", "mix", "recorded", "swe", "threads", "verified"})
"""Play what they are given."""
NEED_A_BROWSER = frozenset({"browser"})
NAMES = sorted(ENVS.keys() - OF_OTHERS - OF_ROWS - NEED_A_BROWSER)
MAX_TURNS = 70


@pytest.mark.parametrize("said", ["", "done"])
@pytest.mark.parametrize("name", NAMES)
def test_doing_nothing_earns_nothing(name, said):
    async def play():
        envs = LocalEnvs()
        session = await envs.open(Task("t", name, 3, "train", {}), {})
        earned = 0.0
        try:
            for turn in range(MAX_TURNS):
                step = await session.step(turn, Action(said), 30.0)
                earned += step.reward
                if step.done:
                    return earned, step.success
        finally:
            await session.close()
            await envs.close()
        raise AssertionError("the episode does not end")

    earned, success = asyncio.run(play())
    assert earned <= 0.0
    assert not success
