"""Layers compute from the weights that an update has loaded, or the update is refused."""

import gc
import weakref

import pytest
import torch

from asyncrl.weights.vllm_plugin import inspect_models_in_place, register
from tests.packages import ImportedWhenUsed

custom_ops = ImportedWhenUsed("vllm._custom_ops")
reloading = ImportedWhenUsed("vllm.model_executor.model_loader.reload")
direct_writes = ImportedWhenUsed("asyncrl.weights.vllm_direct_writes")


def test_int8_weights_keep_the_scales_they_were_packed_with():
    """A reload frees what it has packed from, and packed weights know only the address of their scales."""
    register()
    generator = torch.Generator().manual_seed(0)
    weight_KN = torch.randint(-127, 128, (64, 32), generator=generator, dtype=torch.int8)
    scales_N = torch.rand(32, 1, generator=generator) / 100
    given = scales_N.clone()
    alive = weakref.ref(given)
    # Arguments after the type: quantised per token, without a zero point, kernels kept.
    packed = custom_ops.create_onednn_scaled_mm(
        weight_KN.t().contiguous().t(), given, torch.float32, True, False, 32
    )
    del given
    gc.collect()
    assert alive() is not None
    tokens, token_scales, _ = custom_ops.onednn_scaled_int8_quant(torch.randn(5, 64, generator=generator))
    out = torch.empty(5, 32)
    custom_ops.onednn_scaled_mm(packed, tokens, out, token_scales, None, None, None)
    expected = (tokens.float() * token_scales) @ (weight_KN.float() * scales_N.T)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_an_update_that_a_loader_writes_past_the_reload_is_refused_instead_of_lost():
    class Direct(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.sinks = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))

        def load_weights(self, weights):
            for name, tensor in weights:
                getattr(self, name).data.copy_(tensor)

    def reload(model, *names):
        reloading.record_metadata_for_reloading(model)
        reloading.initialize_layerwise_reload(model)
        direct_writes.keep_sinks(model)
        with direct_writes.LostWrites() as writes:
            model.load_weights((name, torch.ones(3)) for name in names)
        writes.check(model)
        reloading.finalize_layerwise_reload(model, None)

    model = Direct()
    reload(model, "sinks")
    assert (model.sinks.tolist(), model.table.tolist()) == ([1.0] * 3, [0.0] * 3)
    with pytest.raises(NotImplementedError, match="Direct writes table past the reload"):
        reload(Direct(), "sinks", "table")


def test_a_model_that_vllm_has_never_met_is_inspected_without_a_second_process(monkeypatch, tmp_path):
    from vllm.model_executor.models import registry

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setattr(registry, "_run_in_subprocess", registry._run_in_subprocess)
    monkeypatch.setattr(registry, "subprocess", None)
    inspect_models_in_place()
    found = registry.ModelRegistry.models["Qwen3ForCausalLM"].inspect_model_cls()
    assert found.architecture == "Qwen3ForCausalLM" and found.is_text_generation_model
    (remembered,) = tmp_path.glob("modelinfos/*.json")
    assert "Qwen3ForCausalLM" in remembered.name
