"""Runs that share an engine which exists before and after them."""

import json
from types import SimpleNamespace

import pytest

from asyncrl.config import load_config
from asyncrl.extensions.study import attached_run
from asyncrl.extensions.study.attached_run import SharedEngine
from asyncrl.launch.machines.placement import BESIDE_TRAINER
from asyncrl.launch.processes.process_group import ProcessGroup


@pytest.mark.parametrize(
    ("gpus", "share", "engine_sees"), [(("0",), BESIDE_TRAINER, "0"), (("0", "1"), 0.9, "1")]
)
def test_a_shared_engine_leaves_the_trainer_its_gpu_or_its_part_of_one(
    tmp_path, monkeypatch, gpus, share, engine_sees
):
    started = {}

    def start(self, name, argv, env=None, **rest):
        started[name] = env
        return SimpleNamespace(url="http://127.0.0.1:1")

    monkeypatch.setattr(attached_run, "found_gpus", lambda: gpus)
    monkeypatch.setattr(ProcessGroup, "start", start)
    monkeypatch.setattr(ProcessGroup, "wait_ready", lambda *given: None)
    engine = SharedEngine(load_config("gridworld_grpo", ["model.path=some/model"]), tmp_path)
    engine.stop()
    assert started["engine"]["CUDA_VISIBLE_DEVICES"] == engine_sees
    said = json.loads((tmp_path / "config.json").read_text())["engine"]
    assert said["gpu_memory_utilization"] == share
