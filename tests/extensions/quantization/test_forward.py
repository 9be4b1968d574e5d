"""Rounding to eight bits: hand-computed numbers, gradients straight through it, and models that it is refused for."""

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.errors import ConfigError
from asyncrl.extensions.quantization.engine import quantization_config
from asyncrl.extensions.quantization.forward import Quantized, quantize_forward
from asyncrl.extensions.quantization.rounding import quantize, quantized_checkpoint
from asyncrl.train.models.loading import load_policy
from tests.models import save_deepseek, save_experts


def test_int8_rounds_to_multiples_of_a_scale_of_each_row():
    values = torch.tensor([[127.0, -63.5, 0.4, 2.5], [0.0, 0.0, 0.0, 0.0], [2.54, 0.01, -2.54, 0.03]])
    rounded, scales = quantize(values, "int8")
    assert rounded.dtype == torch.int8
    # Halves go to the even neighbour.
    assert rounded.tolist() == [[127, -64, 0, 2], [0, 0, 0, 0], [127, 0, -127, 2]]
    assert scales[:, 0].tolist() == pytest.approx([1.0, 1e-12, 0.02])


def test_fp8_is_torchs_cast_of_the_scaled_rows():
    values = torch.randn(5, 33, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    rounded, scales = quantize(values, "fp8")
    assert rounded.dtype == torch.float8_e4m3fn
    assert scales[:, 0].tolist() == pytest.approx([float(row.abs().max()) / 448 for row in values])
    expected = (values.float() / scales).to(torch.float8_e4m3fn)
    assert torch.equal(rounded.float(), expected.float())
    # Three bits of mantissa: 448, then steps of 32 down to 256, of 16 down to 128.
    steps, _ = quantize(torch.tensor([[448.0, 433.0, 431.0, 137.0, 135.0]]), "fp8")
    assert steps.float().tolist() == [[448.0, 448.0, 416.0, 144.0, 128.0]]


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_gradients_pass_through_the_rounding(scheme):
    model = torch.nn.Module()
    model.q_proj = torch.nn.Linear(16, 8)
    model.get_output_embeddings = lambda: None
    quantize_forward(model, scheme)
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found = model.q_proj(x)
    rounded = [
        numbers.float() * scales
        for numbers, scales in (quantize(x, scheme), quantize(model.q_proj.weight, scheme))
    ]
    tokens, weight = (part.detach().requires_grad_() for part in rounded)
    expected = torch.nn.functional.linear(tokens, weight, model.q_proj.bias)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    plain = torch.nn.functional.linear(x, model.q_proj.weight, model.q_proj.bias)
    assert 1e-4 < float((found - plain).detach().abs().max()) < 0.1
    direction = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    wanted = torch.autograd.grad((expected * direction).sum(), (tokens, weight))
    got = torch.autograd.grad((found * direction).sum(), (x, model.q_proj.weight, model.q_proj.bias))
    torch.testing.assert_close(got[:2], wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got[2], direction.sum((0, 1)))


def test_a_checkpoint_is_quantised_as_the_forward_pass_is(tiny_model):
    saved = load_file(f"{tiny_model}/model.safetensors")
    found = dict(quantized_checkpoint(saved.items(), "int8"))
    layers = [name.removesuffix("_scale") for name in found if name.endswith(".weight_scale")]
    assert len(layers) == 2 * 7
    assert {name for name in saved if name not in layers} == {
        name for name, tensor in found.items() if tensor.dtype.is_floating_point and "_scale" not in name
    }
    policy = load_policy(tiny_model, "float32", changes=[Quantized("int8")])
    name = "model.layers.1.mlp.down_proj"
    module = policy.model.get_submodule(name)
    # A token whose numbers are whole is not rounded.
    token = torch.arange(-63.0, 64.0)
    token = torch.cat([token, torch.full((module.in_features - len(token),), 127.0)])[None]
    exact = token @ (found[f"{name}.weight"].float() * found[f"{name}.weight_scale"]).t()
    torch.testing.assert_close(module(token), exact, atol=1e-3, rtol=1e-5)
    assert quantization_config("int8")["ignore"] == ["lm_head"]


def test_models_with_other_layers_are_refused(tmp_path):
    quantized = [Quantized("int8")]
    save_experts("qwen3_moe", tmp_path / "experts")
    with pytest.raises(ConfigError, match=r"engine.quantization: Qwen3MoeForCausalLM has more .*experts"):
        load_policy(str(tmp_path / "experts"), "float32", changes=quantized)
    save_deepseek(tmp_path / "latent")
    with pytest.raises(ConfigError, match=r"engine.quantization: DeepseekV3ForCausalLM has more .*q_a_proj"):
        load_policy(str(tmp_path / "latent"), "float32", changes=quantized)
