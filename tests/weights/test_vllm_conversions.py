"""A file's tensors are converted for the engines and models that need it, and go as they are to all others."""

from types import SimpleNamespace

import pytest
import torch

from asyncrl.extensions.quantization.rounding import quantize
from asyncrl.extensions.quantization.settings import VARIABLE
from asyncrl.weights.vllm_conversions import CONVERSIONS, converted

LAYER = "model.layers.0.self_attn.q_proj"
EXPERTS = "model.layers.0.mlp.experts"


def model(kind):
    return SimpleNamespace(hf_text_config=SimpleNamespace(model_type=kind))


def loaded(tensors, kind="qwen3"):
    return dict(converted(iter(tensors.items()), model(kind), torch.device("cpu")))


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def test_nothing_is_changed_of_what_needs_no_conversion():
    tensors = {f"{LAYER}.weight": torch.randn(2, 3), f"{EXPERTS}.gate_up_proj": torch.randn(2, 3)}
    found = loaded(tensors)
    assert list(found) == list(tensors) and all(found[name] is tensors[name] for name in tensors)
    assert not any(one.asked(model("qwen3")) for one in CONVERSIONS)


def test_a_quantising_engine_gets_rounded_weights_and_their_scales(monkeypatch):
    monkeypatch.setenv(VARIABLE, "int8")
    weight, norm = torch.randn(2, 3), torch.ones(3)
    found = loaded({f"{LAYER}.weight": weight, "model.norm.weight": norm})
    rounded, scales = quantize(weight, "int8")
    assert list(found) == [f"{LAYER}.weight", f"{LAYER}.weight_scale", "model.norm.weight"]
    assert torch.equal(found[f"{LAYER}.weight"], rounded)
    assert torch.equal(found[f"{LAYER}.weight_scale"], scales)
    assert found["model.norm.weight"] is norm


def test_experts_that_one_models_loader_would_write_directly_go_one_by_one():
    fused = torch.arange(12.0).view(2, 2, 3)
    found = loaded({f"{EXPERTS}.gate_up_proj": fused, "lm_head.weight": torch.ones(1)}, "gpt_oss")
    names = [f"{EXPERTS}.{number}.gate_up_proj" for number in (0, 1)]
    assert list(found) == [*names, "lm_head.weight"]
    assert all(torch.equal(found[name], expert) for name, expert in zip(names, fused, strict=True))
