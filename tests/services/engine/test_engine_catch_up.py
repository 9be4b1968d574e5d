"""An engine that starts while a run goes on has the run's weights before its first answer, and never goes back."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.errors import InfrastructureError, InputError
from asyncrl.generation import GenerateRequest
from asyncrl.weights.files import write_weights
from asyncrl.weights.position import write_committed
from tests.engines import kill_and_see_all_end, serving
from tests.services.engine.test_engine import TOLERANCE, load, token_logp, with_client

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def late_engine(tiny_model, tmp_path_factory):
    """`(engine, model of version 5, folder of weights)`; the engine starts when version 5 is committed."""
    folder = tmp_path_factory.mktemp("late")
    model = load(tiny_model, 0.05, seed=5)
    write_committed(folder, write_weights(folder, 5, model.named_parameters(), epoch=2))
    with serving(folder, tiny_model, folder) as engine:
        yield engine, model, folder


@pytest.fixture
def late(late_engine):
    """`late_engine` with the engine's address."""
    engine, model, folder = late_engine
    return engine.url, model, folder


def test_its_first_answer_comes_from_the_committed_weights(late, tiny_model):
    url, model, _ = late
    prompt = np.arange(10, 30, dtype=np.int32)
    generated = with_client(url, lambda c: c.generate(GenerateRequest("first", prompt, 12, min_version=5)))
    assert set(generated.versions.tolist()) == {5}
    expected = token_logp(model, prompt, generated.token_ids)
    np.testing.assert_allclose(generated.logprobs, expected, atol=TOLERANCE)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    assert np.abs(token_logp(base, prompt, generated.token_ids) - expected).max() > 0.01


def test_a_group_of_a_later_version_is_sent_elsewhere(late):
    url, _, _ = late
    request = GenerateRequest("later", np.arange(10, 30, dtype=np.int32), 4, min_version=6)
    with pytest.raises(InfrastructureError, match="serves version 5, the group was admitted at version 6"):
        with_client(url, lambda c: c.generate(request))


def test_a_commit_is_taken_once_and_never_from_a_trainer_that_is_gone(late, tiny_model):
    url, _, folder = late
    sixth = write_weights(folder, 6, load(tiny_model, 0.05, seed=6).named_parameters(), epoch=2)
    old = write_weights(folder, 7, load(tiny_model, 0.05, seed=7).named_parameters(), epoch=1)
    back = write_weights(folder, 4, load(tiny_model, 0.05, seed=4).named_parameters(), epoch=3)

    async def scenario(client):
        first = await client.request("weights/commit", sixth.to_json())
        again = await client.request("weights/commit", sixth.to_json())
        with pytest.raises(InputError, match="version 7, epoch 1, come after version 6, epoch 2"):
            await client.request("weights/commit", old.to_json())
        versions = [(await client.state())["version"]]
        await client.request("weights/commit", back.to_json())
        epoch = (await client.request("weights/epoch", {}))["epoch"]
        return first, again, [*versions, (await client.state())["version"]], epoch

    first, again, versions, epoch = with_client(url, scenario)
    assert first["pause_s"] > 0
    assert again["pause_s"] == 0
    assert versions == [6, 4]
    # From it the next trainer takes its own, where the folder's record was lost.
    assert epoch == 3


def test_an_engine_that_is_killed_takes_all_its_processes_along(late_engine):
    """Last in this file, whose other tests need the engine."""
    kill_and_see_all_end(late_engine[0], "serve engine")
