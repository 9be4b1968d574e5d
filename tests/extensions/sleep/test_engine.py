"""An engine that sleeps is told so where vLLM takes it."""

import pytest

from asyncrl.config import parse_config
from asyncrl.extensions.sleep import engine
from asyncrl.services.engine.additions import additions
from asyncrl.services.engine.service import EngineOptions, build_command
from tests.extensions.test_table import PLAIN, SLEEP


@pytest.mark.parametrize(("cpu", "told"), [(False, True), (True, False)])
def test_an_engine_that_shares_its_gpu_can_sleep_and_on_a_cpu_vllm_is_not_asked(monkeypatch, cpu, told):
    monkeypatch.setattr(engine, "on_cpu", lambda: cpu)
    asked = additions(parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **SLEEP}), True)
    assert ("--enable-sleep-mode" in build_command(EngineOptions("m", additions=asked), 1)) is told


def test_another_engine_is_told_nothing():
    assert additions(PLAIN, True) == ()
