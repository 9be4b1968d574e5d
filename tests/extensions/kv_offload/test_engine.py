"""A KV cache that reaches into host memory: what vLLM is told, and where it is refused."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.kv_offload import engine
from asyncrl.gpus import on_cpu
from asyncrl.launch.checks.check import check_engine
from asyncrl.services.engine.additions import additions
from asyncrl.services.engine.service import EngineOptions, build_command

RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


def test_an_engine_with_a_tier_is_told_its_size_and_another_one_nothing(monkeypatch):
    monkeypatch.setattr(engine, "on_cpu", lambda: False)
    asked = additions(parse_config(RECIPE | {"engine": {"kv_offload_gib": 1.5}}), True)
    command = build_command(EngineOptions("m", additions=asked), 1)
    assert command[command.index("--kv-offloading-size") + 1] == "1.5"
    assert "--kv-offloading-size" not in build_command(EngineOptions("m"), 1)


@pytest.mark.skipif(not on_cpu(), reason="this vLLM can offload")
def test_a_tier_is_refused_on_a_cpu_before_anything_starts():
    config = parse_config(RECIPE | {"engine": {"kv_offload_gib": 4}})
    for refuse in (lambda: check_engine(config), lambda: additions(config, True)):
        with pytest.raises(
            ConfigError, match=r"engine.kv_offload_gib: vLLM offloads the KV cache of GPUs alone"
        ):
            refuse()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"engine": {"kv_offload_gib": 4, "keep_kv": True}}, r"must be 0 where engine.keep_kv is true"),
        (
            {"engine": {"kv_offload_gib": 4}, "train": {"router_replay": True}},
            r"must be 0 for train.router_replay=true",
        ),
        (
            {"engine": {"kv_offload_gib": 4, "nodes": 2, "tensor_parallel": 2}},
            r"must be 0 with engine.nodes=2: the ranks share blocks",
        ),
    ],
)
def test_a_tier_is_refused_beside_what_it_would_make_wrong(other, message):
    with pytest.raises(ConfigError, match=rf"engine.kv_offload_gib {message}"):
        parse_config(RECIPE | other)
