"""What vLLM is told about quantisation and batch invariance, and where it is refused."""

import json

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu
from asyncrl.services.engine.numerics import (
    check_numerics,
    numerics_variables,
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
