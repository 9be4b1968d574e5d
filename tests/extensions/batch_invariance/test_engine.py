"""What vLLM is told about batch invariance, and where it is refused."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.batch_invariance import engine
from asyncrl.gpus import on_cpu
from asyncrl.launch.checks.check import check_engine
from asyncrl.services.engine.additions import additions

RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}
INVARIANT = parse_config(RECIPE | {"engine": {"batch_invariant": True}})


def test_an_engine_is_told_by_a_variable_and_another_one_nothing(monkeypatch):
    monkeypatch.setattr(engine, "on_cpu", lambda: False)
    assert [dict(one.variables) for one in additions(INVARIANT, True)] == [{"VLLM_BATCH_INVARIANT": "1"}]
    assert additions(parse_config(RECIPE), True) == ()


@pytest.mark.skipif(not on_cpu(), reason="this vLLM has the kernels")
def test_batch_invariance_is_refused_on_a_cpu_before_anything_starts():
    for refuse in (lambda: check_engine(INVARIANT), lambda: additions(INVARIANT, True)):
        with pytest.raises(
            ConfigError, match=r"engine.batch_invariant: vLLM's batch-invariant kernels need a GPU"
        ):
            refuse()
