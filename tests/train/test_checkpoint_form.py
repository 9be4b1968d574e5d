"""Published tensors have names and shapes of the checkpoint that transformers writes, and come back as they were."""

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.train.models.checkpoint_form import checkpoint_form, from_checkpoint, persistent_buffers
from tests.models import EXPERTS, save_deepseek, save_experts


def test_fused_experts_and_router_biases_are_published_as_the_saved_checkpoint_has_them(tmp_path):
    model = save_deepseek(tmp_path)
    with torch.no_grad():
        dict(persistent_buffers(model))["model.layers.1.mlp.gate.e_score_correction_bias"].uniform_()
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    for _ in range(2):
        published = dict(checkpoint_form(model, model.named_parameters()))
        assert sorted(published) == sorted(saved)
        assert "model.layers.1.mlp.experts.7.up_proj.weight" in published
        assert all(torch.equal(published[name], saved[name]) for name in saved)


@pytest.mark.parametrize("family", EXPERTS)
def test_every_family_is_published_as_it_is_saved_and_found_again(tmp_path, family):
    model = save_experts(family, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    published = dict(checkpoint_form(model, model.named_parameters()))
    assert {name: tensor.shape for name, tensor in published.items()} == {
        name: tensor.shape for name, tensor in saved.items()
    }
    assert all(torch.equal(published[name], saved[name]) for name in saved)
    for name, parameter in model.named_parameters():
        assert torch.equal(from_checkpoint(model, name, parameter, published), parameter)


def test_a_models_own_tensors_are_found_again_in_its_checkpoint(tmp_path):
    model = save_deepseek(tmp_path)
    found = dict(checkpoint_form(model, model.named_parameters()))
    for name, parameter in model.named_parameters():
        assert torch.equal(from_checkpoint(model, name, parameter, found), parameter)
