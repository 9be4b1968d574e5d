"""Weights for the session's engine, and the check that its log-probabilities are those of the same weights here."""

import asyncio

import numpy as np
import pytest
import torch

from asyncrl.services.engine.client import EngineClient
from asyncrl.weights.files import write_weights

TOLERANCE = 1e-5
"""The promise is 1e-4; float32 on one machine does far better."""


@pytest.fixture(scope="session")
def publish_weights(engine_url, engine_weights):
    """`publish_weights(model)` gives the session's engine these weights and returns their version."""

    async def publish(model):
        client = EngineClient(engine_url)
        try:
            version = (await client.state())["version"] + 1
            file = write_weights(engine_weights, version, model.named_parameters()).to_json()
            await client.request("weights/prepare", file)
            await client.request("weights/commit", file)
            return version
        finally:
            await client.close()

    return lambda model: asyncio.run(publish(model))


@pytest.fixture(scope="session")
def check_agreement():
    """`check_agreement(model, trajectory, temperature, version)`: every sampled token has the log-probability of a
    forward pass over the trajectory, and this version."""

    @torch.no_grad()
    def check(model, trajectory, temperature, version):
        ids = torch.tensor(trajectory.token_ids)[None].long()
        logp = torch.log_softmax(model(ids).logits[0, :-1].float() / temperature, -1)
        expected = logp.gather(1, ids[0, 1:, None])[:, 0].numpy()
        mask = trajectory.loss_mask[1:]
        np.testing.assert_allclose(trajectory.behavior_logprobs[1:][mask], expected[mask], atol=TOLERANCE)
        assert set(trajectory.versions[trajectory.loss_mask].tolist()) == {version}

    return check
