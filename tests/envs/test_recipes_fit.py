"""The recipes of our environments: what their experts and random policies write fits into the lengths they set."""

import pytest

from asyncrl.config import load_config
from asyncrl.env.registry import load_env
from asyncrl.rollout.render import ChatRenderer
from asyncrl.train.demonstrations import demonstrations, encode
from asyncrl.train.sft import _texts
from asyncrl.train.tiny_model import build_tokenizer

SANDBOXED = [pytest.param(name, marks=pytest.mark.slow) for name in ("code", "math_tool")]


@pytest.mark.parametrize("name", ["countdown", "office", "sql", "support", *SANDBOXED])
def test_a_tiny_models_recipe_has_room_for_its_episodes(name):
    config = load_config(f"{name}_grpo", [])
    assert (config.env.name, config.model.path) == (name, "sft")
    count = 10 if name in ("code", "math_tool") else 60
    demos = list(demonstrations(load_env(name), name, config.env.config, count, 0.5, 0))
    tokenizer = build_tokenizer(_texts(demos), config.sft.vocab_size, config.engine.max_model_len)
    renderer = ChatRenderer(tokenizer)
    turns = [
        len(renderer.assistant(message, demo.tools))
        for demo in demos
        for message in demo.messages
        if message["role"] == "assistant"
    ]
    assert max(len(encode(renderer, demo)[0]) for demo in demos) <= config.engine.max_model_len
    assert max(turns) <= config.rollout.max_tokens_per_turn
    rewards = [demo.reward for demo in demos]
    assert 0 < sum(rewards) / len(rewards) < 1
