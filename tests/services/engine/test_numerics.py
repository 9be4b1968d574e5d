"""What vLLM is told about quantisation and batch invariance, and where it is refused."""

import json
import platform

import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.config_sections import EngineConfig
from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu
from asyncrl.services.engine import numerics
from asyncrl.services.engine.numerics import (
    check_numerics,
    int8_saturates,
    numerics_variables,
    numerics_warning,
)
from asyncrl.services.engine.service import EngineOptions, build_command
from asyncrl.weights.vllm_plugin import QUANTIZATION

RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


def test_a_quantised_engine_is_told_how_and_another_one_nothing():
    assert numerics_variables(EngineOptions("m")) == {}
    assert "--hf-overrides" not in build_command(EngineOptions("m"), 1)
    options = EngineOptions("m", quantization="fp8")
    command = build_command(options, 1)
    told = json.loads(command[command.index("--hf-overrides") + 1])["quantization_config"]
    group = told["config_groups"]["group_0"]
    assert (told["format"], group["weights"]["strategy"]) == ("float-quantized", "channel")
    assert (group["input_activations"]["strategy"], group["input_activations"]["dynamic"]) == ("token", True)
    assert numerics_variables(options) == {QUANTIZATION: "fp8"}


@pytest.mark.skipif(not on_cpu(), reason="this vLLM has the kernels")
def test_batch_invariance_is_refused_on_a_cpu_before_anything_starts():
    config = parse_config(RECIPE | {"engine": {"batch_invariant": True}})
    for refuse in (
        lambda: check_numerics(config.engine),
        lambda: build_command(EngineOptions("m", batch_invariant=True), 1),
    ):
        with pytest.raises(
            ConfigError, match=r"engine.batch_invariant: vLLM's batch-invariant kernels need a GPU"
        ):
            refuse()
    assert numerics_variables(EngineOptions("m", batch_invariant=True)) == {"VLLM_BATCH_INVARIANT": "1"}


def test_adapters_are_not_trained_on_rounded_weights():
    with pytest.raises(ConfigError, match=r"engine.quantization must be 'off' where lora.rank is above 0"):
        parse_config(RECIPE | {"engine": {"quantization": "int8"}, "lora": {"rank": 4}})


@pytest.mark.skipif(not on_cpu() or platform.machine() != "x86_64", reason="it is about CPUs of x86")
@pytest.mark.parametrize(
    ("flags", "saturates"), [("fma avx2", True), ("avx2 avx_vnni", False), ("avx512f avx512_vnni", False)]
)
def test_int8_saturates_on_a_cpu_without_vnni(tmp_path, monkeypatch, flags, saturates):
    (tmp_path / "cpuinfo").write_text(f"model name\t: one\nflags\t\t: fpu {flags} sse2\n")
    assert int8_saturates(tmp_path / "cpuinfo") is saturates
    monkeypatch.setattr(numerics, "int8_saturates", lambda: saturates)
    said = numerics_warning(EngineConfig(count=2, explorers=1))
    assert said.startswith("warning: engine.explorers_quantization='int8'") is saturates
    assert not numerics_warning(EngineConfig(quantization="fp8"))


@pytest.mark.skipif(not on_cpu(), reason="it is about oneDNN")
def test_this_machine_multiplies_eight_bits_as_it_says():
    import vllm._custom_ops as ops

    ones, whole = torch.ones(4, 64), torch.full((4, 64), 127.0)
    # They are not copied.
    scales = torch.ones(64)
    found = []
    for value, states in ((1, ones), (127, whole)):
        weights = torch.full((64, 64), value, dtype=torch.int8).t()
        handler = ops.create_onednn_scaled_mm(weights, scales, torch.float32, True, False, 32)
        rounded, scale, _ = ops.onednn_scaled_int8_quant(states, None, None, True)
        product = torch.zeros(4, 64)
        ops.onednn_scaled_mm(handler, rounded, product, scale, None, None, None)
        found.append(product[0, 0].item() / (64 * value * states[0, 0].item()))
    assert found[0] == pytest.approx(1.0, rel=1e-3)
    assert (found[1] == pytest.approx(1.0, rel=1e-3)) is not int8_saturates()
