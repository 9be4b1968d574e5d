"""A run that cannot fit is refused before anything starts."""

import json
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import zeros

from asyncrl import cli
from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.planning import refuse
from tests.extensions.planning.recipes import SMALL
from tests.waiting import START_S

GIB = 2**30


@pytest.fixture
def gpus(monkeypatch):
    """Make a machine with GPUs of these sizes of this one; returns the commands that predict."""
    commands = []

    def of(*sizes):
        start = refuse.start_process
        monkeypatch.setattr(refuse, "TIMEOUT_S", START_S)
        monkeypatch.setattr(refuse, "gpu_memory", lambda: list(sizes))
        monkeypatch.setattr(
            refuse,
            "start_process",
            lambda words, *rest, **more: commands.append(words) or start(words, *rest, **more),
        )
        return commands

    return of


def test_a_run_too_large_for_the_gpu_is_refused_with_the_sums(gpus):
    gpus(8 * GIB)
    config = load_config(SMALL, ["model.dtype=bfloat16"])
    with pytest.raises(
        ConfigError, match=r"(?s)does not fit the GPUs.*optimizer states.*does not fit: GPU 0: .* 8\.0 GiB"
    ):
        refuse.check_memory(config)


def test_a_run_that_fits_is_not_refused(gpus):
    commands = gpus(80 * GIB)
    refuse.check_memory(load_config(SMALL, ["model.dtype=bfloat16"]))
    assert len(commands) == 1 and "81920MiB" in commands[0]


def test_a_run_that_does_not_fit_can_be_started_all_the_same(gpus, capsys):
    gpus(8 * GIB)
    config = load_config(SMALL, ["model.dtype=bfloat16"])
    assert refuse.check_memory(config, even_so=True) == config
    said = capsys.readouterr().err
    assert (
        "warning: this run does not fit the GPUs" in said and "started all the same (--ignore-memory)" in said
    )


def test_a_smaller_share_for_the_engines_is_said_and_taken(gpus, capsys):
    gpus(24 * GIB)
    taken = refuse.check_memory(load_config(SMALL, ["model.dtype=bfloat16"]))
    assert taken.engine.gpu_memory_utilization == 0.351
    assert (
        "note: engines take 0.351 of a GPU's memory instead of 0.45, so that all fits"
        in capsys.readouterr().err
    )


def test_what_a_run_that_fits_leaves_out_is_said_when_it_starts(gpus, monkeypatch, capsys):
    gpus(80 * GIB)

    def plans(words, *rest, **more):
        found = {"notes": ["GPU 0: something is left out"], "gpu_memory_utilization": 0.45}
        Path(words[-1]).write_text(json.dumps(found))
        return subprocess.Popen(["true"])

    monkeypatch.setattr(refuse, "start_process", plans)
    config = load_config(SMALL, ["model.dtype=bfloat16"])
    assert refuse.check_memory(config) == config
    assert "note: GPU 0: something is left out" in capsys.readouterr().err


def test_a_model_of_unknown_shape_is_not_refused(gpus, capsys):
    gpus(80 * GIB)
    refuse.check_memory(load_config(SMALL, ["model.path=nobody/nothing"]))
    assert "memory was not predicted: asyncrl: model.path: the shape of" in capsys.readouterr().err


def test_the_tiny_base_model_is_not_predicted(gpus):
    commands = gpus(80 * GIB)
    refuse.check_memory(load_config("gridworld_grpo"))
    assert not commands


def test_on_a_cpu_only_what_cannot_fit_for_certain_is_refused(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "float32"}))
    save_file({"weight": zeros(1000)}, tmp_path / "model.safetensors")
    stored = (tmp_path / "model.safetensors").stat().st_size // 4 * 4
    words = [f"model.path={tmp_path}", "model.dtype=float32", "engine.count=2"]
    config = load_config("gridworld_grpo", words)
    monkeypatch.setattr(refuse, "gpu_memory", list)

    def memory(total):
        monkeypatch.setattr(refuse.psutil, "virtual_memory", lambda: type("Memory", (), {"total": total}))

    # Two engines, and the trainer's weights, moments and gradients.
    memory(2 * stored + 4 * stored)
    refuse.check_memory(config)
    memory(2 * stored + 4 * stored - 1)
    with pytest.raises(ConfigError, match=r"model\.path.*2 engine\(s\) need.*lora\.rank=16"):
        refuse.check_memory(config)
    refuse.check_memory(load_config("gridworld_grpo", [*words, "lora.rank=16"]))
    in_files = ["train.zero_stage=3", "train.offload=optimizer", "train.offload_folder=nvme"]
    refuse.check_memory(load_config("gridworld_grpo", [*words, *in_files]))


def test_the_command_refuses_before_there_is_a_run_folder(tmp_path, monkeypatch, capsys):
    def too_large(config, even_so):
        raise ConfigError("does not fit")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(refuse, "check_memory", too_large)
    assert cli.main(["train", "gridworld_grpo"]) == 2
    assert "does not fit" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
