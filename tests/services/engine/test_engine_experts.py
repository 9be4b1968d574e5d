"""A real engine reports the experts of every token, whatever its cache, its scheduler and its weights go through."""

import asyncio
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import torch

from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.extensions.commitments.commitment import COMMITMENTS, tokens_of
from asyncrl.extensions.commitments.findings import differences
from asyncrl.extensions.router_replay.replay import Replayed
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.models.checkpoint_form import checkpoint_form
from asyncrl.train.models.loading import load_policy
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from asyncrl.types import Group, Status, Task
from asyncrl.weights.files import write_weights
from tests.credentials import AUTHORIZED
from tests.engines import ENGINE, serving
from tests.models import save_experts
from tests.services.engine.test_engine import contexts, token_logp
from tests.services.engine.test_engine_collective import change, disagreement
from tests.waiting import START_S

pytestmark = pytest.mark.slow
REPLAY = (Replayed(),)
TOLERANCE = 1e-4
BLOCK = 32
TASK = Task("t", "gridworld")


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """`(folder, model)` of a mixture of experts with a tokenizer; the model is changed by each version."""
    folder = tmp_path_factory.mktemp("experts")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tiny_model) / name, folder)
    return folder, save_experts("qwen3_moe", folder)


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    """Its cache holds 12 blocks: not enough for three long contexts."""
    folder = tmp_path_factory.mktemp("run")
    small_cache = ["--block-size", str(BLOCK), "--num-gpu-blocks-override", "13"]
    recipe = {
        "engine": ENGINE | {"extra_args": small_cache},
        "train": {"router_replay": True, "commitments": True},
    }
    with serving(folder, str(model[0]), folder, **recipe) as process:
        yield process, folder


@torch.no_grad()
def chosen(model, token_ids):
    """The experts [L,layers,K] of tokens by the model's own routers, in ascending order."""
    logits = model(torch.tensor(token_ids)[None].long(), output_router_logits=True).router_logits
    return torch.stack([layer.topk(2).indices.sort(-1).values for layer in logits], 1).numpy()


async def turn(client, builder, name, max_tokens):
    extras = {COMMITMENTS: True, **builder.asked()}
    request = GenerateRequest(name, builder.token_ids(), max_tokens, extras=extras)
    builder.add_turn(await client.generate(request))


async def episode(client, index, prompt, max_tokens, turns=1):
    """Play turns with observations between them; return the trajectory."""
    builder = TrajectoryBuilder(TASK, index)
    builder.add_context(prompt)
    for number in range(turns):
        await turn(client, builder, f"e{index}-{number}", max_tokens)
        if number < turns - 1:
            builder.add_context(np.arange(20 + index, 27 + index, dtype=np.int32))
    return builder.finish(Status.FINISHED)


async def steps_taken(client, count):
    """Wait until the engine has taken so many more steps."""
    start = (await client.state())["iterations"]
    async with asyncio.timeout(START_S):
        while (await client.state())["iterations"] < start + count:
            await asyncio.sleep(0.001)


@contextmanager
def standing_still(pid):
    """Stop the process that computes, so that what is asked of the engine meanwhile comes between two of its steps."""
    (core,) = [
        child for child in psutil.Process(pid).children(recursive=True) if "EngineCore" in child.cmdline()[0]
    ]
    core.suspend()
    try:
        yield
    finally:
        core.resume()


def preemptions(url):
    lines = httpx.get(f"{url}/metrics", headers=AUTHORIZED).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_preemptions_total"))


@torch.no_grad()
def states(model, trajectory):
    """The hidden states [S,H] that the sampled tokens of a trajectory come from."""
    hidden = model.base_model(torch.tensor(trajectory.token_ids)[None].long()).last_hidden_state[0]
    return hidden[np.flatnonzero(trajectory.loss_mask) - 1].float().numpy()


def worst(trajectory, recomputed):
    found = differences(trajectory.extras["commitments"], recomputed)
    assert sum(map(tokens_of, trajectory.extras["commitments"])) == trajectory.num_sampled

    return max(one.exponents for one in found), max(one.mantissa_mean for one in found)


def logp_errors(policy, trajectories, replay):
    """Differences of the engine's log-probabilities from the trainer's, of all tokens sampled."""
    rows = pad_rows(
        build_step_batch([Group("g", TASK, 0, tuple(trajectories))], 9, 9), range(len(trajectories))
    )
    with torch.no_grad():
        found = policy(rows.token_ids, rows.mask, 1.0, extras=rows.extras if replay else {})["logp"]
    return (found - rows.behavior_logp).abs()[rows.mask]


def test_experts_are_reported_and_replayed_over_turns_caches_preemption_and_updates(engine, model):
    process, folder = engine
    url = process.url
    path, policy = model
    prompt = contexts(1, 3 * BLOCK + 5, 512)[0]

    async def scenario():
        client = EngineClient(url)
        try:
            first = await episode(client, 0, prompt, 20, turns=3)
            siblings = await asyncio.gather(*(episode(client, i, prompt, 40, turns=2) for i in range(1, 5)))
            before = chosen(policy, first.token_ids), [chosen(policy, t.token_ids) for t in siblings]
            old = {name: p.detach().clone() for name, p in policy.named_parameters()}
            change(policy, 1)
            file = write_weights(folder, 1, checkpoint_form(policy, policy.named_parameters()))
            await client.request("weights/prepare", file.to_json())
            running = [asyncio.create_task(episode(client, i, prompt[i:], 150)) for i in range(3)]
            await steps_taken(client, 30)
            with standing_still(process.popen.pid):
                commit = asyncio.create_task(client.request("weights/commit", file.to_json()))
                await asyncio.sleep(0.2)
            await commit
            crossed = await asyncio.gather(*running)
            later = await episode(client, 9, prompt, 60)
            unasked = await client.generate(GenerateRequest("unasked", prompt, 4))
            return first, siblings, before, old, crossed, later, unasked
        finally:
            await client.close()

    first, siblings, before, old, crossed, later, unasked = asyncio.run(scenario())
    assert unasked.extras == {}
    # The others found whole blocks of the prompt in the cache, and lost theirs to one another.
    assert min(t.info["cached_tokens"] for t in siblings) >= 3 * BLOCK
    assert preemptions(url) > 0
    for trajectory, expected in zip([first, *siblings], [before[0], *before[1]], strict=True):
        assert trajectory.extras["routed_experts"].dtype == np.uint8
        np.testing.assert_array_equal(np.sort(trajectory.extras["routed_experts"], -1), expected[:-1])
    np.testing.assert_array_equal(
        np.sort(later.extras["routed_experts"], -1), chosen(policy, later.token_ids)[:-1]
    )
    new = {name: p.detach().clone() for name, p in policy.named_parameters()}
    for trajectory in crossed:
        assert set(trajectory.versions[trajectory.loss_mask].tolist()) == {0, 1}
        by_version, computed = [], []
        for weights in (old, new):
            policy.load_state_dict(weights, strict=False)
            by_version.append(chosen(policy, trajectory.token_ids)[:-1])
            computed.append(states(policy, trajectory))
        # A commitment over a change of weights fits the states of both, each token's under its own version.
        of_new = trajectory.versions[trajectory.loss_mask].astype(bool)[:, None]
        assert max(worst(trajectory, np.where(of_new, computed[1], computed[0]))) < 0.05
        assert worst(trajectory, computed[0])[0] > 0.3
        # The pass that sampled a token is the one that read the token before it.
        is_new = np.maximum(trajectory.versions[1:], 0).astype(bool)
        expected = np.where(is_new[:, None, None], by_version[1], by_version[0])
        np.testing.assert_array_equal(np.sort(trajectory.extras["routed_experts"], -1), expected)
        assert (by_version[0] != by_version[1]).any()

    policy.save_pretrained(path)
    exact = load_policy(str(path), "float32", changes=REPLAY)
    assert float(logp_errors(exact, [later], True).max()) < TOLERANCE
    assert max(worst(later, states(policy, later))) < 0.1
    another_prompt = later.token_ids.copy()
    another_prompt[len(prompt) // 2] += 1
    another_token = later.token_ids.copy()
    another_token[len(prompt) + 3] += 1
    for token_ids in (another_prompt, another_token):
        assert worst(later, states(policy, replace(later, token_ids=token_ids)))[0] > 0.3
    expected = token_logp(policy, prompt, later.token_ids[len(prompt) :])
    np.testing.assert_allclose(later.behavior_logprobs[len(prompt) :], expected, atol=TOLERANCE)
    # A trainer that rounds differently than its engine sends tokens to other experts, unless it is told theirs.
    coarse = load_policy(str(path), "bfloat16", changes=REPLAY)
    without, replayed = (logp_errors(coarse, [later], replay) for replay in (False, True))
    assert float(replayed.max()) < float(without.max())


def test_an_update_reaches_all_that_the_loader_of_gpt_oss_writes(tiny_model, tmp_path):
    """Its loader copies fused experts and attention sinks past vLLM's reload, which would keep the old ones."""
    model, weights = tmp_path / "model", tmp_path / "weights"
    weights.mkdir()
    policy = save_experts("gpt_oss", model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tiny_model) / name, model)

    async def scenario(url):
        client = EngineClient(url)
        try:
            assert await disagreement([client], policy, 0) < TOLERANCE
            for version, part in enumerate(("experts", "sinks", ""), 1):
                change(policy, version, part)
                file = write_weights(weights, version, checkpoint_form(policy, policy.named_parameters()))
                await client.request("weights/prepare", file.to_json())
                await client.request("weights/commit", file.to_json())
                assert await disagreement([client], policy, version) < TOLERANCE
        finally:
            await client.close()

    with serving(tmp_path / "run", str(model), weights) as engine:
        asyncio.run(scenario(engine.url))
