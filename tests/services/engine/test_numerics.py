"""What vLLM is told about batch invariance, and where it is refused."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu
from asyncrl.services.engine.numerics import (
    check_numerics,
    numerics_variables,
)
from asyncrl.services.engine.service import EngineOptions, build_command

RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


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
    assert numerics_variables(EngineOptions("m")) == {}
