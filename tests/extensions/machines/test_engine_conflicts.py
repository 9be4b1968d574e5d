"""What does not go together with an engine over several machines."""

import pytest

from asyncrl.config import load_config, parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.spread import check_machines
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder
from asyncrl.tls import VARIABLE as TLS
from asyncrl.tls import make_certificates

BASE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"engine": {"nodes": 2, "tensor_parallel": 3}},
            r"engine.nodes must divide the 3 ranks of engine.tensor_parallel = 3, got 2",
        ),
        (
            {"engine": {"nodes": 4, "tensor_parallel": 3, "pipeline_parallel": 2}},
            r"the 6 ranks of engine.tensor_parallel = 3 x engine.pipeline_parallel = 2, got 4",
        ),
        (
            {"engine": {"nodes": 2, "tensor_parallel": 2}, "lora": {"rank": 4}},
            "lora.rank must be 0 with engine.nodes=2: vLLM reads adapters",
        ),
        (
            {"engine": {"nodes": 2, "tensor_parallel": 2, "weight_delta": True}},
            "engine.weight_delta must be false with engine.nodes=2",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(BASE | sections)


def test_a_run_of_one_machine_refuses_it(tmp_path):
    config = load_config("gridworld_grpo", ["engine.nodes=2", "engine.tensor_parallel=2"])
    with (
        RunFolder(tmp_path / "run") as folder,
        pytest.raises(ConfigError, match=r"engine\.nodes = 2: the run is on"),
    ):
        TrainRun(config, folder)


def test_encryption_refuses_it(monkeypatch, tmp_path):
    config = parse_config(BASE | {"engine": {"nodes": 2, "tensor_parallel": 2, "weight_transfer": "http"}})
    check_machines(config)
    (files,) = make_certificates(tmp_path / "tls", ["127.0.0.1"])
    monkeypatch.setenv(TLS, str(files))
    with pytest.raises(
        ConfigError, match=r"engine\.nodes: the groups of torch\.distributed .* are not encrypted"
    ):
        check_machines(config)
