"""Recipes whose tiny model is made on the spot: what experts and random policies write fits into their limits."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.config import load_config
from asyncrl.env.registry import load_env
from asyncrl.extensions.supervised.demonstrations import demonstrations, encode
from asyncrl.extensions.supervised.sft import make_renderer
from asyncrl.sandbox.jail.client import LauncherClient

RECIPES = Path(__file__).parents[2] / "recipes"
SLOW = {"code", "math_tool", "minigrid", "search", "swe_mini", "terminal"}
"""Episodes that take tens of milliseconds or more: fewer of them are played."""


def tiny_recipes():
    """The recipes that start from a model of their own making."""
    for path in sorted(RECIPES.glob("*/recipe.toml")):
        config = load_config(path)
        if config.model.path == "sft":
            name = path.parent.name.removesuffix("_grpo")
            yield pytest.param(path, name, id=name, marks=pytest.mark.slow if name in SLOW else ())


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    asyncio.run(LauncherClient.close_shared())


@pytest.mark.parametrize(("path", "name"), list(tiny_recipes()))
def test_a_tiny_models_recipe_has_room_for_its_episodes(path, name, tmp_path):
    config = load_config(path)
    env, settings = config.env.name, config.env.config
    if (maker := path.parent / "make_tasks.py").exists():
        # Its page has the reader make the tasks first.
        subprocess.run([sys.executable, maker, tmp_path / "tasks", "20"], check=True, capture_output=True)
        settings = {**settings, "tasks": str(tmp_path / "tasks")}
    demos = list(demonstrations(load_env(env), env, settings, 8 if name in SLOW else 60, 0.5, seed=0))
    # As the warm start makes it, on fewer episodes.
    renderer = make_renderer(demos, config.engine.max_model_len)
    for demo in demos:
        encoded = encode(renderer, demo)
        ids, mask = encoded.ids, encoded.mask
        turns = [len(renderer.assistant(m, demo.tools)) for m in demo.messages if m["role"] == "assistant"]
        assert len(ids) <= config.engine.max_model_len
        assert max(turns) <= config.rollout.max_tokens_per_turn
        assert mask.sum() == sum(turns)
    # The expert wins and the random policy does not always: there is something to imitate, and something to learn.
    assert 0 < sum(demo.reward for demo in demos) / len(demos) < 1
