"""A vLLM server scores the trainer's trajectories as a local model does."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.config_checks import check_objective
from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.models.loading import load_frozen
from asyncrl.train.parts.scoring import KEY, EngineScorer, read_prompt_logprobs
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from asyncrl.weights.files import write_weights
from tests.credentials import TOKEN
from tests.models import save_with_the_words_of
from tests.train.factories import batch_of_groups, trajectory
from tests.train.one_step import Learner


@pytest.fixture(scope="module")
def other_model(tiny_model, tmp_path_factory):
    """Another model with the same vocabulary: a policy that differs from what the engine serves."""
    return save_with_the_words_of(tiny_model, tmp_path_factory.mktemp("other"), 64, 2, seed=1)


@pytest.fixture(autouse=True)
def scorer_key(monkeypatch):
    """The server is one of ours and asks for its token."""
    monkeypatch.setenv(KEY, TOKEN)


@pytest.fixture(scope="module")
def served(engine_url, engine_weights, tiny_model):
    """The session's engine with the weights of `tiny_model`, whatever other tests have published."""

    async def commit():
        client = EngineClient(engine_url)
        try:
            version = (await client.state())["version"] + 1
            tensors = load_frozen(tiny_model, "float32").model.named_parameters()
            file = write_weights(engine_weights, version, tensors)
            for phase in ("prepare", "commit"):
                await client.request(f"weights/{phase}", file.to_json())
        finally:
            await client.close()

    asyncio.run(commit())
    return engine_url


def test_entries_are_read_at_sampled_positions_only():
    entries = [None, {"7": {"logprob": -1.5}}, {"9": {"logprob": -0.25}, "3": {"logprob": -0.1}}]
    values = read_prompt_logprobs(entries, [5, 7, 9], np.array([True, False, True]))
    assert values.tolist() == [0.0, 0.0, -0.25]


@pytest.mark.slow
def test_the_server_gives_every_sampled_token_the_models_log_probability(tiny_model, served):
    batch = build_step_batch(batch_of_groups(), 0, 0)
    scorer = EngineScorer(served)
    found = scorer.score(batch)
    scorer.close()
    rows = pad_rows(batch, range(len(batch.trajectories)))
    with torch.no_grad():
        expected = load_frozen(tiny_model, "float32")(rows.token_ids, rows.mask, 1.0)["logp"]
    assert (expected[rows.mask] < -1).all()
    torch.testing.assert_close(found.values, expected[rows.mask], atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "algo"), [("teacher", {"preset": "opd"}), ("reference", {"preset": "grpo", "kl": {"coef": 0.1}})]
)
def test_a_served_model_trains_as_a_local_one(tiny_model, other_model, served, role, algo):
    reports = []
    for section in ({"path": tiny_model}, {"path": served}):
        learner = Learner(other_model, algo, **{role: section})
        learner.step()
        reports.append(learner.step().metrics)
    assert reports[0]["loss/total"] == pytest.approx(reports[1]["loss/total"], abs=1e-5)
    assert reports[0]["grad_norm"] == pytest.approx(reports[1]["grad_norm"], rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_an_error_of_the_server_is_reported_in_its_words(served):
    too_long = dataclasses.replace(trajectory("t", turns=40), task_id="t")
    scorer = EngineScorer(served)
    with pytest.raises(InfrastructureError, match=r"POST http.*/v1/completions failed: 400"):
        scorer._one(too_long)
    scorer.close()


def test_a_server_that_is_not_there_is_named():
    scorer = EngineScorer("http://127.0.0.1:9", timeout_s=1.0)
    with pytest.raises(InfrastructureError, match=r"GET http://127.0.0.1:9/v1/models failed: ConnectError"):
        scorer.score(build_step_batch(batch_of_groups(), 0, 0))


def test_a_served_model_needs_temperature_one():
    config = parse_config(
        {
            "model": {"path": "x"},
            "env": {"name": "gridworld"},
            "rollout": {"temperature": 0.7},
            "reference": {"path": "http://127.0.0.1:9"},
            "algo": {"preset": "grpo", "kl": {"coef": 0.1}},
        }
    )
    with pytest.raises(ConfigError, match=r"reference\.path: a served model scores at temperature 1"):
        check_objective(config)
