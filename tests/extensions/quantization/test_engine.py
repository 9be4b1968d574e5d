"""What vLLM is told of quantisation, and what is not rounded."""

import json

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.services.engine.additions import additions
from asyncrl.services.engine.service import EngineOptions, build_command

RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


def test_a_quantised_engine_is_told_how_and_another_one_nothing():
    assert "--hf-overrides" not in build_command(EngineOptions("m"), 1)
    asked = additions(parse_config(RECIPE | {"engine": {"quantization": "fp8"}}), True)
    command = build_command(EngineOptions("m", additions=asked), 1)
    told = json.loads(command[command.index("--hf-overrides") + 1])["quantization_config"]
    group = told["config_groups"]["group_0"]
    assert (told["format"], group["weights"]["strategy"]) == ("float-quantized", "channel")
    assert (group["input_activations"]["strategy"], group["input_activations"]["dynamic"]) == ("token", True)
    assert [one.variables for one in asked] == [{"ASYNCRL_QUANTIZATION": "fp8"}]


def test_adapters_are_not_trained_on_rounded_weights():
    with pytest.raises(ConfigError, match=r"engine.quantization must be 'off' where lora.rank is above 0"):
        parse_config(RECIPE | {"engine": {"quantization": "int8"}, "lora": {"rank": 4}})
