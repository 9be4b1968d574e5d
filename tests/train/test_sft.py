"""The warm start sees the tokens that rollouts build, and makes the same model from the same seed."""

import asyncio

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncrl.chat.renderer import Limits, load_renderer
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.config import parse_config
from asyncrl.env.registry import load_env
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.services.env.client import LocalEnvs
from asyncrl.train.demonstrations import demonstrations, encode
from asyncrl.train.sft import train_base_model


class Replay:
    """An engine that samples the assistant turns of a demonstration."""

    def __init__(self, renderer, demo):
        self.turns = iter(
            [renderer.assistant(m, demo.tools) for m in demo.messages if m["role"] == "assistant"]
        )

    async def generate(self, request):
        ids = next(self.turns)
        return Generated(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")


@pytest.mark.parametrize("env", ["gridworld", "calculator"])
@pytest.mark.parametrize("oracle_fraction", [0.0, 1.0])
def test_a_demonstration_has_the_tokens_and_mask_of_the_same_episode_rolled_out(
    renderer, env, oracle_fraction
):
    env_class = load_env(env)
    demos = list(demonstrations(env_class, env, {}, 12, oracle_fraction, seed=0))
    settings = EpisodeSettings(Limits(0, 100, 1000), check_history=True)

    async def rolled_out(task, demo):
        player = ChatPlayer(Replay(renderer, demo), LocalEnvs(), renderer, parse_hermes, settings)
        return (await player.play(EpisodeRequest(task, 0, "e")))[0]

    for task, demo in zip(env_class.tasks("train", env), demos, strict=False):
        trajectory = asyncio.run(rolled_out(task, demo))
        encoded = encode(renderer, demo)
        ids, mask = encoded.ids, encoded.mask
        assert trajectory.token_ids.tolist() == ids.tolist()
        assert trajectory.loss_mask.tolist() == mask.tolist()
        assert trajectory.reward == demo.reward
        assert trajectory.info["history_matches"]


@pytest.mark.slow
def test_the_base_model_is_the_same_for_the_same_seed_and_has_learned(tmp_path):
    def train(name, seed):
        sft = {
            "hidden_size": 32,
            "num_layers": 1,
            "episodes": 100,
            "batch_size": 16,
        }
        sft |= {"steps": 40, "oracle_fraction": 1.0}
        engine = {"max_model_len": 256}
        recipe = {"model": {"path": "sft"}, "env": {"name": "gridworld"}, "engine": engine, "sft": sft}
        return train_base_model(parse_config(recipe), tmp_path / name, seed)

    first, again, other = train("first", 0), train("again", 0), train("other", 1)
    weights = [load_file(folder / "model.safetensors") for folder in (first, again, other)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert not all(torch.equal(tensor, weights[2][name]) for name, tensor in weights[0].items())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "first", "other"]

    renderer = load_renderer(str(first))
    model = AutoModelForCausalLM.from_pretrained(first)
    context = renderer.opening([{"role": "user", "content": "goal north"}])
    with torch.no_grad():
        logits = model(torch.from_numpy(context.astype(np.int64))[None]).logits[0, -1]
    words = {w: renderer.assistant({"role": "assistant", "content": w})[0] for w in ("north", "say")}
    assert logits[words["north"]] > logits[words["say"]]
