"""Models of the families that people bring: an engine samples and updates each of them as the trainer computes it."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.models.checkpoint_form import checkpoint_form
from asyncrl.train.models.loading import load_policy
from asyncrl.weights.files import write_weights
from tests.engines import serving
from tests.models import DENSE, EXPERTS, VOCABULARY, save_deepseek, save_dense, save_experts
from tests.services.engine.test_engine import token_logp
from tests.services.engine.test_engine_collective import change

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
TURNS, OBSERVED = 3, 9


def save(family, folder):
    if family == "deepseek_v3":
        return save_deepseek(folder)
    return save_experts(family, folder) if family in EXPERTS else save_dense(family, folder)


async def episode(client, policy, version):
    """The largest difference of a sampled token's log-probability over turns with observations between them."""
    random = np.random.default_rng(version)
    context = random.integers(2, VOCABULARY, 24).tolist()
    worst = 0.0
    for turn in range(TURNS):
        request = GenerateRequest(f"{version}-{turn}", context, 16, min_version=version)
        answer = await client.generate(request)
        expected = token_logp(policy, context, answer.token_ids)
        worst = max(worst, float(np.abs(answer.logprobs - expected).max()))
        observed = random.integers(2, VOCABULARY, OBSERVED).tolist()
        context = [*context, *answer.token_ids.tolist(), *observed]
    return worst


@pytest.mark.parametrize("family", [*DENSE, *EXPERTS, "deepseek_v3"])
def test_turns_of_a_family_agree_before_and_after_an_update(family, tiny_model, tmp_path):
    model, weights = tmp_path / "model", tmp_path / "weights"
    weights.mkdir()
    save(family, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tiny_model) / name, model)
    policy = load_policy(str(model), "float32").model.eval()

    async def scenario(url):
        client = EngineClient(url)
        try:
            assert await episode(client, policy, 0) < TOLERANCE
            change(policy, 1)
            file = write_weights(weights, 1, checkpoint_form(policy, policy.named_parameters()))
            await client.request("weights/prepare", file.to_json())
            await client.request("weights/commit", file.to_json())
            assert await episode(client, policy, 1) < TOLERANCE
        finally:
            await client.close()

    with torch.no_grad(), serving(tmp_path / "run", str(model), weights) as process:
        asyncio.run(scenario(process.url))
