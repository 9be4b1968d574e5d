"""Layers compute from the weights that an update has loaded, or the update is refused."""

import sys
import time

import pytest
import torch
import zmq

from asyncrl.weights.vllm_plugin import inspect_models_in_place
from tests.packages import ImportedWhenUsed

custom_ops = ImportedWhenUsed("vllm._custom_ops")
reloading = ImportedWhenUsed("vllm.model_executor.model_loader.reload")
direct_writes = ImportedWhenUsed("asyncrl.weights.vllm_direct_writes")
CHANGED = {
    "_supports_onednn",
    "cpu_fused_moe",
    "cpu_prepack_moe_weight",
    "create_onednn_scaled_mm",
    "onednn_scaled_mm",
}


@pytest.mark.slow
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


def test_a_cpu_with_amx_computes_as_one_without(monkeypatch):
    from vllm import _custom_ops
    from vllm.model_executor.layers.utils import check_cpu_sgl_kernel

    from asyncrl.weights import vllm_cpu

    # What it changes is as before when the test has ended.
    for module in filter(None, [_custom_ops, sys.modules.get(vllm_cpu._EXPERTS)]):
        for name in CHANGED & vars(module).keys():
            monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    kinds = (torch.bfloat16, torch.int8)
    assert [check_cpu_sgl_kernel(64, 64, kind) for kind in kinds] == [True, True]
    vllm_cpu.keep_weights_live()
    assert [check_cpu_sgl_kernel(64, 64, kind) for kind in kinds] == [False, False]


def test_processes_of_an_engine_sleep_until_the_next_message_instead_of_looking_for_it(monkeypatch):
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    from asyncrl.weights import vllm_cpu

    monkeypatch.setattr(SpinCondition, "__init__", SpinCondition.__init__)
    vllm_cpu.sleep_between_messages()
    with zmq.Context() as context:
        writer, reader = (SpinCondition(read, context, "inproc://messages") for read in (False, True))
        try:
            reader.record_read()
            time.sleep(2 * vllm_cpu.SPIN_S)
            began = time.monotonic()
            reader.wait(timeout_ms=200)
            assert time.monotonic() - began >= 0.15, "vLLM would look again at once for a second"
            writer.notify()
            reader.wait(timeout_ms=60_000)
            assert time.monotonic() - began < 60, "a message wakes it"
        finally:
            for one in (writer.local_notify_socket, reader.local_notify_socket):
                one.close(0)
            reader.read_cancel_socket.close(0)
            reader.write_cancel_socket.close(0)
