"""Recipes whose tiny model is made on the spot: what the expert writes and reads fits into their limits."""

import asyncio

import pytest

from asyncrl.config import load_config
from asyncrl.env.registry import load_env
from asyncrl.env.sandbox.jail.client import LauncherClient
from asyncrl.envs.browser import chromium
from asyncrl.errors import ConfigError
from asyncrl.rollout.render import ChatRenderer
from asyncrl.train.demonstrations import demonstrations, encode
from asyncrl.train.sft import _texts
from asyncrl.train.tiny_model import build_tokenizer

RECIPES = ["browser", "repair", "search", "simulated", "team", "terminal", "textgame"]
EPISODES = 6


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    chromium.stop_all()
    asyncio.run(LauncherClient.close_shared())


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_an_experts_episode_fits_into_the_recipes_limits(name):
    config = load_config(f"recipes/{name}_grpo")
    if name == "browser":
        try:
            chromium.find_chromium()
        except ConfigError as error:
            pytest.skip(str(error))
    assert (config.env.name, config.model.path) == (name, "sft")
    demos = list(demonstrations(load_env(name), name, config.env.config, EPISODES, 1.0, seed=0))
    # As the warm start trains it, on fewer episodes: tokens are shorter then, and turns longer.
    tokenizer = build_tokenizer(_texts(demos), config.sft.vocab_size, config.engine.max_model_len)
    renderer = ChatRenderer(tokenizer)
    for demo in demos:
        ids, mask = encode(renderer, demo)
        assert len(ids) < config.engine.max_model_len
        turns = [renderer.assistant(m, demo.tools) for m in demo.messages if m["role"] == "assistant"]
        assert mask.sum() == sum(map(len, turns))
        assert max(map(len, turns)) <= config.rollout.max_tokens_per_turn
