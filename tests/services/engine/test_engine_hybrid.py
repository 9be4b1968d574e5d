"""An engine on a CPU for a hybrid model, of state-space layers beside attention: vLLM lengthens its blocks itself."""

import asyncio
import shutil
from pathlib import Path

import pytest
import torch

from asyncrl.kv_blocks import short_blocks
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.models.loading import load_policy
from asyncrl.weights.files import write_weights
from tests.engines import ENGINE, serving
from tests.models import save_hybrid
from tests.services.engine.test_engine_collective import change, disagreement

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4


def test_a_hybrid_model_is_sampled_and_updated_as_the_trainer_computes_it(tiny_model, tmp_path):
    model, weights = tmp_path / "model", tmp_path / "weights"
    weights.mkdir()
    save_hybrid(model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tiny_model) / name, model)
    policy = load_policy(str(model), "float32").model.eval()
    assert short_blocks(ENGINE["max_model_len"])

    async def scenario(url):
        client = EngineClient(url)
        try:
            assert await disagreement([client], policy, 0) < TOLERANCE
            change(policy, 1)
            file = write_weights(weights, 1, policy.named_parameters())
            await client.request("weights/prepare", file.to_json())
            await client.request("weights/commit", file.to_json())
            assert await disagreement([client], policy, 1) < TOLERANCE
        finally:
            await client.close()

    with torch.no_grad(), serving(tmp_path / "run", str(model), weights) as process:
        asyncio.run(scenario(process.url))
