"""An engine that speculates samples exact log-probabilities, across an update, and refuses what it cannot report."""

import asyncio
import importlib.util

import numpy as np
import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.config_checks import check_objective
from asyncrl.errors import ConfigError, InputError
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.additions import additions
from asyncrl.services.engine.service import EngineOptions, build_command
from asyncrl.types import Decoding
from asyncrl.weights.files import write_weights
from tests.engines import ENGINE, serving
from tests.services.engine.test_engine import load, token_logp, with_client

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
AT_ONCE = 8


def recipe(speculative, **sections):
    return {
        "model": {"path": "m"},
        "env": {"name": "gridworld"},
        "engine": {"speculative": speculative},
        **sections,
    }


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"rollout": {"temperature": 0.8}},
            "rollout.temperature must be 1 for engine.speculative.method='ngram'",
        ),
        (
            {"eval": {"temperature": 0.5}},
            "eval.temperature must be 0 or 1 for engine.speculative.method='ngram'",
        ),
    ],
)
def test_temperatures_whose_log_probabilities_would_be_wrong_are_refused(sections, told):
    with pytest.raises(ConfigError, match=told):
        parse_config(recipe(NGRAM, **sections))
    parse_config(recipe(NGRAM, eval={"temperature": 0.0}))
    parse_config(recipe({"method": "off"}, **sections))


@pytest.mark.parametrize(
    ("speculative", "told"),
    [
        ({"method": "eagle3"}, "model: must name the drafter for method='eagle3'"),
        ({"method": "ngram", "model": "d"}, "model: must be left out for method='ngram', got 'd'"),
        ({"method": "medusa"}, "engine.speculative.method"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens"),
    ],
)
def test_a_method_gets_what_it_needs_and_nothing_else(speculative, told):
    with pytest.raises(ConfigError, match=told):
        parse_config(recipe(speculative))


def test_a_drafter_that_training_would_leave_behind_is_refused_in_training_alone():
    config = parse_config(recipe({"method": "eagle3", "model": "drafter"}))
    with pytest.raises(
        ConfigError, match=r"'eagle3' has a drafter .* allowed in training: off, ngram, suffix"
    ):
        check_objective(config)
    command = build_command(EngineOptions("m", additions=additions(config, publishes=False)), 1)
    assert [command[i + 1] for i, one in enumerate(command) if one == "--logprobs-mode"][-1] == "raw_logprobs"
    assert '"model": "drafter"' in command[command.index("--speculative-config") + 1]


@pytest.mark.skipif(
    importlib.util.find_spec("arctic_inference") is not None, reason="arctic-inference is here"
)
def test_suffix_decoding_without_its_package_is_refused_by_the_packages_name():
    with pytest.raises(ConfigError, match="pip install arctic-inference"):
        additions(parse_config(recipe({"method": "suffix"})), publishes=True)


def test_an_engine_that_does_not_speculate_reports_what_it_sampled_from():
    command = build_command(EngineOptions("m"), 1)
    assert command[command.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert "--speculative-config" not in command


def sharp(path, seed):
    """A model that repeats itself, so that what it has said before is often accepted."""
    model = load(path, 0.05, seed=seed)
    with torch.no_grad():
        model.model.norm.weight.mul_(6.0)
    return model


@pytest.fixture(scope="module")
def speculating(tiny_model, tmp_path_factory):
    """`(address, folder of its weights)` of an engine that speculates."""
    weights = tmp_path_factory.mktemp("speculating-weights")
    folder = tmp_path_factory.mktemp("speculating")
    options = {**ENGINE, "max_num_seqs": AT_ONCE, "speculative": NGRAM}
    with serving(folder, tiny_model, weights, engine=options) as engine:
        yield engine.url, weights


@pytest.mark.slow
def test_accepted_tokens_have_the_log_probabilities_a_forward_pass_gives_before_and_after_an_update(
    speculating, tiny_model
):
    url, folder = speculating
    models = [sharp(tiny_model, seed) for seed in (1, 2)]
    files = [write_weights(folder, v, m.named_parameters()) for v, m in enumerate(models, 1)]
    rng = np.random.default_rng(0)
    prompts = [np.tile(rng.integers(5, models[0].config.vocab_size, 6), 4).astype(np.int32) for _ in range(4)]
    # Turns wait for others to end, so some are between two tokens whenever the update comes.
    many = prompts * AT_ONCE

    async def scenario(client):
        async def turns(name, prompts, num_tokens):
            requests = [GenerateRequest(f"{name}-{i}", p, num_tokens) for i, p in enumerate(prompts)]
            return await asyncio.gather(*(client.generate(r) for r in requests))

        async def computed():
            return (await client.state())["computed_tokens"]

        await client.request("weights/prepare", files[0].to_json())
        await client.request("weights/commit", files[0].to_json())
        first = await turns("first", prompts, 16)
        await client.request("weights/prepare", files[1].to_json())
        before = await computed()
        crossing = asyncio.create_task(turns("cross", many, 200))
        while await computed() == before:
            await asyncio.sleep(0)
        await client.request("weights/commit", files[1].to_json())
        return first, await crossing, await turns("after", prompts, 16), await client.state()

    first, crossed, after, state = with_client(url, scenario)
    assert 0 < state["accepted_tokens"] < state["proposed_tokens"]
    assert any(len(set(g.versions.tolist())) > 1 for g in crossed)
    for asked, results in ((prompts, first), (many, crossed), (prompts, after)):
        for prompt, generated in zip(asked, results, strict=True):
            old, new = (token_logp(m, prompt, generated.token_ids) for m in models)
            expected = np.where(generated.versions == 2, new, old)
            np.testing.assert_allclose(generated.logprobs, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "decoding", "told"),
    [
        (0.7, None, "temperature: this engine speculates"),
        (1.0, Decoding(top_p=0.9), "top_p: this engine speculates"),
        (1.0, Decoding(top_k=5), "top_k: this engine speculates"),
        (1.0, Decoding(presence_penalty=1.0), "presence_penalty: this engine speculates"),
    ],
)
def test_a_request_it_cannot_report_exactly_fails_alone_with_the_reason(
    speculating, temperature, decoding, told
):
    prompt = np.arange(10, 30, dtype=np.int32)

    async def scenario(client):
        asked = [
            GenerateRequest(f"{told}-wrong", prompt, 4, temperature, decoding=decoding),
            GenerateRequest(f"{told}-greedy", prompt, 4, 0.0),
        ]
        return await asyncio.gather(*(client.generate(r) for r in asked), return_exceptions=True)

    wrong, greedy = with_client(speculating[0], scenario)
    assert isinstance(wrong, InputError) and told in str(wrong)
    assert len(greedy.token_ids) > 0
