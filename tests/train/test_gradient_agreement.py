"""Every way of computing a gradient gives the gradient of transformers, one row after the other, to 1e-5."""

import itertools

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.train.models.loading import load_policy
from asyncrl.train.models.prefix_tree import uses_prefix_trees
from tests.train.gradients import MODELS, gradient, reference, save_model

WAYS = {
    "padded": {"trees": False},
    "packed as a tree": {},
    "logits in chunks": {"chunk_tokens": 5},
    "padded, logits in chunks": {"trees": False, "chunk_tokens": 5},
    "checkpointed": {"checkpointed": True},
    "checkpointed, on the host": {"checkpointed": True, "offloaded": True},
    "micro-batched": {"budget": 40},
    "all at once": {"checkpointed": True, "chunk_tokens": 5, "budget": 40},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gradients")


@pytest.fixture(scope="module", params=MODELS)
def model(request, folder):
    """Name, folder and gradient of a model."""
    path = save_model(request.param, folder / request.param)
    return request.param, path, reference(path)


def assert_agree(found, expected):
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        scale = float(grad.norm())
        assert scale > 0, name
        assert float((found[name] - grad).norm()) < 1e-5 * scale, name


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_does_not_depend_on_how_it_is_computed(model, way):
    _, path, expected = model
    assert_agree(gradient(path, **WAYS[way]), expected)


def test_every_kind_of_model_is_packed_as_a_tree(model):
    _, path, _ = model
    assert uses_prefix_trees(load_policy(path, "float32").model)


@pytest.mark.slow
def test_two_ranks_of_any_zero_stage_find_the_same_gradient_with_rows_of_their_own_or_together(
    two_ranks, folder
):
    expected = {}
    for name in MODELS:
        path = save_model(name, folder / name)
        expected[name] = reference(path)
    expected["tied+adapter"] = gradient(str(folder / "tied"), lora=True)
    two_ranks.call("tests.train.gradients", str(folder), *expected)
    for name in expected:
        for stage, together in itertools.product(range(4), (1, 2)):
            assert_agree(load_file(folder / f"{name}-{stage}-{together}.safetensors"), expected[name])
        assert_agree(load_file(folder / f"{name}-divided.safetensors"), expected[name])


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapter"])
def test_checkpointing_leaves_the_gradient_equal_to_the_last_bit(model, lora):
    _, path, _ = model
    kept, recomputed = gradient(path, lora=lora), gradient(path, lora=lora, checkpointed=True)
    assert kept.keys() == recomputed.keys()
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)
