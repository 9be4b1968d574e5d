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
from asyncrl.config_sections import SftConfig
from asyncrl.env.protocol import Action
from asyncrl.env.registry import load_env
from asyncrl.envs.gridworld.env import MOVES
from asyncrl.envs.visual_gridworld.env import VisualGridworld
from asyncrl.extensions.supervised.demonstrations import Demonstration, demonstrations, encode
from asyncrl.extensions.supervised.sft import (
    _train_batch,
    agent_weights,
    imitated,
    pad,
    token_weights,
    train_base_model,
)
from asyncrl.extensions.vision.tiny_model import build_vision_model
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.services.env.client import LocalEnvs
from asyncrl.train.models.loading import load_policy
from asyncrl.types import Task
from tests.fake_gpu import fake_gpu


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


def look(config, folder, run=None):
    """Train the base model of a grid that must be seen; return it as a policy, with its renderer."""
    sft = {"hidden_size": 64, "num_layers": 1, "episodes": 100, "batch_size": 16, "oracle_fraction": 1.0}
    env = {"name": "visual_gridworld", "config": {"size": 2, "max_turns": 2}}
    engine = {"max_model_len": 64}
    recipe = {"model": {"path": "sft"}, "env": env, "engine": engine, "sft": sft | config}
    train_base_model(parse_config(recipe | {"run": run or {}}), folder)
    return load_policy(str(folder), "float32"), load_renderer(str(folder))


@torch.no_grad()
def first_move(policy, renderer, env):
    """The most probable first move of an episode."""
    opening = env.reset()
    rows = [
        encode(renderer, Demonstration([*opening, {"role": "assistant", "content": word}], [], 0.0))
        for word in MOVES
    ]
    ids, mask = pad([(row.ids, row.mask) for row in rows])
    logp = policy(ids, mask, 1.0, extras={"images": [row.images for row in rows]})["logp"].sum(1)
    return list(MOVES)[int(logp.argmax())]


def test_a_base_model_that_imitates_episodes_with_pictures_has_learned_to_look(tmp_path):
    policy, renderer = look({"steps": 100}, tmp_path / "looks")
    tasks = [Task(f"t{seed}", "visual_gridworld", seed) for seed in range(30)]
    envs = [VisualGridworld(task, size=2, max_turns=2) for task in tasks]
    right = sum(bool(env.step(Action(first_move(policy, renderer, env))).matches) for env in envs)
    assert right >= 27
    blind = {first_move(policy, renderer, VisualGridworld(t, 2, 2, shown="blank")) for t in tasks}
    assert len(blind) == 1, "the text tells it nothing"


def test_the_supervised_start_has_the_rate_that_is_set(tmp_path):
    still, _ = look({"steps": 2, "learning_rate": 1e-12}, tmp_path / "still")
    moved, _ = look({"steps": 2, "learning_rate": 1e-2}, tmp_path / "moved")
    initial = build_vision_model(load_renderer(str(tmp_path / "still")).tokenizer, 64, 1, 2, 64, 0)

    def furthest(policy):
        own = policy.model.state_dict()
        return max(float((own[name] - tensor).abs().max()) for name, tensor in initial.state_dict().items())

    assert furthest(still) < 1e-6
    # Adam moves a weight by about its rate, and both steps have the whole of it.
    assert 0.01 < furthest(moved) < 0.021


def test_the_supervised_start_keeps_to_the_threads_that_are_set(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        look({"steps": 1}, tmp_path / "free")
        free = torch.get_num_threads()
        look({"steps": 1}, tmp_path / "bounded", {"threads": 2})
        bounded = torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
    assert (free, bounded) == (3, 2)


def test_the_first_steps_of_a_supervised_start_may_imitate_the_expert_alone(renderer):
    demos = demonstrations(load_env("gridworld"), "gridworld", {}, 20, 0.5, seed=0)
    data = [encode(renderer, demo) for demo in demos]
    experts = [demo for demo in data if demo.expert]
    sft = SftConfig(steps=10, oracle_first=0.3)
    assert 5 <= len(experts) <= 15
    assert [imitated(data, step, sft) is data for step in range(10)] == [False] * 3 + [True] * 7
    assert imitated(data, 2, sft) == experts
    assert imitated(data, 0, SftConfig()) is data
    with pytest.raises(ValueError, match="oracle_first: must be 0 for oracle_fraction=0"):
        SftConfig(oracle_fraction=0, oracle_first=0.3)


def test_an_agent_that_says_little_is_not_lost_beside_one_that_says_much(renderer):
    demos = list(demonstrations(load_env("team"), "team", {"level": 2}, 4, 1.0, seed=0))
    data = [encode(renderer, demo) for demo in demos]
    weights = agent_weights(data)
    said = {agent: sum(int(d.mask.sum()) for d in data if d.agent == agent) for agent in ("", "keeper")}
    assert [demo.agent for demo in demos[:3]] == ["", "keeper", "keeper"]
    assert said[""] > 10 * said["keeper"]
    assert weights["keeper"] / weights[""] == pytest.approx((said[""] / said["keeper"]) ** 0.5)
    assert weights[""] < 1 < weights["keeper"]
    alone = [
        encode(renderer, d) for d in demonstrations(load_env("gridworld"), "gridworld", {}, 3, 1.0, seed=0)
    ]
    assert agent_weights(alone) == {"": 1.0}


def test_what_an_agent_reads_weighs_as_much_as_is_asked_and_its_first_token_nothing(renderer):
    demos = list(demonstrations(load_env("gridworld"), "gridworld", {}, 2, 1.0, seed=0))
    data = [encode(renderer, demo) for demo in demos]
    for observation in (0.0, 0.25):
        weights = token_weights(data, {"": 2.0}, observation)
        for row, demo in zip(weights.tolist(), data, strict=True):
            expected = [0.0] + [2.0 if own else observation for own in demo.mask[1:]]
            assert row == expected + [0.0] * (weights.shape[1] - len(demo.ids))


class OnAGpu:
    """An engine whose log-probabilities are on a GPU, of which there need not be one: they have no values."""

    num_ranks, rank = 1, 0

    def __init__(self):
        self.losses = []

    def logp(self, token_ids, mask, temperature, images):
        return torch.zeros(mask.shape, device="cuda")

    def backward(self, loss, last):
        self.losses.append((loss.device.type, loss.shape, last))

    def step(self, rate):
        self.rate = rate


def test_a_supervised_step_weighs_log_probabilities_where_they_are(renderer):
    demos = demonstrations(load_env("gridworld"), "gridworld", {}, 4, 1.0, seed=0)
    data, engine = [encode(renderer, demo) for demo in demos], OnAGpu()
    with fake_gpu():
        _train_batch(engine, data, agent_weights(data), 0.25, 4096, 1e-3)
    assert engine.losses == [("cuda", (), True)]
    assert engine.rate == 1e-3
