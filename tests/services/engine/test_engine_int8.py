"""A real engine that computes in eight bits: the trainer that rounds alike gives its tokens the same probabilities, and
a whole engine that is given the same seeds follows it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.extensions.quantization.forward import Quantized
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.models.loading import load_policy
from asyncrl.weights.files import write_weights
from tests.engines import ENGINE, serving
from tests.services.engine.test_engine import contexts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tiny_model, tmp_path_factory):
    """Folders of two versions whose distributions are far from uniform, where rounding shows."""
    folders = []
    for version in range(2):
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
        folders.append(tmp_path_factory.mktemp(f"version{version}"))
        model.save_pretrained(folders[-1])
    return folders


def errors(folder, quantization, prompts, answers):
    """Differences of the engine's log-probabilities from the trainer's."""
    policy = load_policy(
        str(folder), "float32", changes=[Quantized(quantization)] if quantization != "off" else []
    )
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        token_ids = torch.tensor(np.concatenate([prompt, answer.token_ids]))[None].long()
        mask = torch.arange(token_ids.shape[1])[None] >= len(prompt)
        with torch.no_grad():
            logp = policy(token_ids, mask, 1.0)["logp"][mask]
        found.append(np.abs(logp.numpy() - answer.logprobs))
    return np.concatenate(found)


@pytest.fixture(scope="module")
def quantised(models, tiny_model, tmp_path_factory):
    """`(address, folder of weights)` of an engine that computes the first version in eight bits."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (models[0] / name).write_bytes((Path(tiny_model) / name).read_bytes())
    folder = tmp_path_factory.mktemp("quantised")
    section = ENGINE | {"quantization": "int8"}
    with serving(folder / "run", str(models[0]), folder, engine=section) as engine:
        yield engine.url, folder


def test_rounding_alike_removes_most_of_the_difference_before_and_after_an_update(models, quantised):
    prompts = contexts(8, 24, 200)
    url, weights = quantised

    async def scenario():
        client = EngineClient(url)
        try:
            answers = []
            for version, folder in enumerate(models):
                if version:
                    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                    file = write_weights(weights, version, model.named_parameters())
                    await client.request("weights/prepare", file.to_json())
                    await client.request("weights/commit", file.to_json())
                requests = (
                    GenerateRequest(f"{version}-{i}", prompt, 40, min_version=version)
                    for i, prompt in enumerate(prompts)
                )
                answers.append(await asyncio.gather(*(client.generate(request) for request in requests)))
            return answers
        finally:
            await client.close()

    answers = asyncio.run(scenario())
    for folder, given in zip(models, answers, strict=True):
        plain, alike = (errors(folder, scheme, prompts, given) for scheme in ("off", "int8"))
        assert plain.mean() > 3 * alike.mean()
        assert alike.mean() < 0.02


async def publish(url, folder, model):
    """Give an engine the weights of a model as its next version; return that version and a client."""
    client = EngineClient(url)
    version = int((await client.state())["version"]) + 1
    file = write_weights(folder, version, model.named_parameters())
    for phase in ("weights/prepare", "weights/commit"):
        await client.request(phase, file.to_json())
    return version, client
