"""The real program mini-swe-agent plays the episodes that swe_mini's scripted policies imitate."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.config import load_config
from asyncrl.env.registry import load_env
from asyncrl.errors import UnavailableError
from asyncrl.extensions.agents.harness.file import read_harness
from asyncrl.extensions.agents.harness.program import install
from asyncrl.extensions.supervised.demonstrations import demonstrations, encode
from asyncrl.types import Status
from tests.extensions.agents.harness.test_harness_episodes import Player
from tests.shared import made_once

RECIPE = Path(__file__).parents[4] / "recipes" / "swe_mini"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The recipe's own copy, with tasks, where the program is installed."""
    cache = made_once("harnesses", lambda folder: None)
    monkeypatch.setenv("ASYNCRL_CACHE", str(cache))
    folder = shutil.copytree(RECIPE, tmp_path / "swe_mini")
    subprocess.run([sys.executable, folder / "make_tasks.py", folder / "tasks", "20"], check=True)
    try:
        install(str(folder / "mini.toml"), read_harness(str(folder / "mini.toml")))
    except UnavailableError as error:
        pytest.skip(f"not installed here: {str(error)[:300]}")
    return folder / "mini_swe_agent.toml"


def test_scripted_episodes_read_as_those_that_the_program_plays(recipe, renderer):
    settings = load_config(recipe).env.config
    (demo,) = demonstrations(load_env("agent"), "agent", settings, 1, 1.0, seed=0)
    repair, submit = (m["tool_calls"][0]["function"] for m in demo.messages if m["role"] == "assistant")
    turns = [f"<tool_call>{json.dumps(call)}</tool_call>" for call in (repair, submit)]
    player = Player(renderer, lambda prompt: turns[prompt.count("<|im_start|>tool")], 600.0, **settings)
    task = next(load_env("agent").tasks("train", "agent", **settings))
    (trajectory,) = player.play(task)
    assert (trajectory.reward, trajectory.status) == (1.0, Status.FINISHED), trajectory.error
    said = renderer.tokenizer.decode(encode(renderer, demo).ids.tolist())
    assert renderer.tokenizer.decode(trajectory.token_ids.tolist()) == said
