"""A server that is killed while a script trains and samples: the script ends with what it would have got."""

import json
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.benchmark_env import benchmark_python
from tests.extensions.tinker.test_sdk import HERE, PACKAGES, Server

pytestmark = pytest.mark.slow
POINTS = ("training", "snapshot", "sampler", "sampling", "sampled")
DELAYS_S = (0.0, 0.05, 0.5)
"""Of the kills of each point, after the script has reached it: what it has sent is then at another place."""


def last(server, path):
    """Return the weights of a checkpoint to train on from."""
    return load_file(
        server.folder / "state" / "policies" / path.split("/")[2] / "weights" / "end.safetensors"
    )


@pytest.mark.timeout(3600)
def test_three_kills_at_each_of_five_points_leave_weights_and_samples_as_they_would_have_been(
    pytestconfig, tiny_model, tmp_path
):
    python = benchmark_python(pytestconfig.cache.mkdir("tinker"), PACKAGES, dependencies=False)
    words = (str(HERE / "sdk_sampled.py"), "7", str(len(DELAYS_S)))
    server, kills = Server(tmp_path, tiny_model), 0
    try:
        wanted = json.loads(server.run(python, *words).splitlines()[-1])
        script = server.script(python, *words)
        for line in script.stdout:
            point, _, number = line.strip().partition(" ")
            if point not in POINTS:
                found = json.loads(line)
                continue
            time.sleep(DELAYS_S[int(number)])
            server.kill()
            server.start()
            kills += 1
        assert script.wait() == 0, server.errors()
        weights, undisturbed = last(server, found["path"]), last(server, wanted["path"])
    finally:
        server.stop()
    assert kills == len(POINTS) * len(DELAYS_S)
    assert weights.keys() == undisturbed.keys()
    assert all(torch.equal(weights[name], undisturbed[name]) for name in weights)
    assert [tokens for tokens, _ in found["sampled"]] == [tokens for tokens, _ in wanted["sampled"]]
    for (_, logprobs), (_, others) in zip(found["sampled"], wanted["sampled"], strict=True):
        np.testing.assert_allclose(logprobs, others, atol=1e-4)
    np.testing.assert_allclose(found["scored"], wanted["scored"], atol=1e-4)
