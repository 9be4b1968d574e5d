"""Supervised training by its command: killed and resumed, and as the start of a run."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.cli import main
from asyncrl.run.checkpoints import complete_checkpoints
from tests.engines import END_S
from tests.waiting import running, wait_until

pytestmark = pytest.mark.slow
WORDS = ("north", "east", "south", "west")


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"question": f"goal {WORDS[i % 4]} {i}", "answer": WORDS[i % 4]}) for i in range(40)]
    path.write_text("\n".join(lines) + "\n")
    return path


def sft(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "asyncrl", "sft", *map(str, words)], cwd=folder, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process):
    out, err = process.communicate(timeout=END_S)
    assert process.returncode == 0, err
    return out, err


def test_a_killed_training_is_resumed_and_ends_as_one_that_was_not(tiny_model, tmp_path, rows):
    words = [
        tiny_model, f"data.train={rows}", "engine.max_model_len=64", "sft.batch_size=4", "sft.epochs=8",
        "sft.checkpoint_every=4", "sft.learning_rate=1e-3", "run.threads=1",
    ]  # fmt: skip
    out, _ = ended(sft(tmp_path, *words, "run.name=whole", "--out", "taught"))
    assert out == "model: taught\n"
    killed = sft(tmp_path, *words, "run.name=killed")
    wait_until(lambda: complete_checkpoints(tmp_path / "runs" / "killed" / "checkpoints"), running(killed))
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=END_S)
    (before, _), *_ = complete_checkpoints(tmp_path / "runs" / "killed" / "checkpoints")
    out, err = ended(sft(tmp_path, "--resume", "runs/killed"))
    (last, checkpoint), *_ = complete_checkpoints(tmp_path / "runs" / "killed" / "checkpoints")
    assert 4 <= before < last
    assert f"going on after step {before}" in err
    assert out == f"model: runs/killed/checkpoints/{checkpoint.name}\n"
    taught = tmp_path / "taught"
    assert not (taught / "training_state").exists()
    expected, found = load_file(taught / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_run_makes_its_supervised_start_once_and_trains_on_from_it(
    tiny_model, tmp_path, rows, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    words = [
        f"model.path={tiny_model}", f"data.train={rows}", 'data.prompt="{question}"', "data.reward=exact",
        "data.heldout_share=0.1", "sft.data=train", "sft.steps=4", "sft.batch_size=4", "sft.learning_rate=1e-3",
        "engine.max_model_len=64", "engine.max_num_seqs=32", "rollout.max_tokens_per_turn=4", "rollout.group_size=4",
        "buffer.groups_per_step=2", "buffer.drop_no_signal=false", "train.num_steps=1", "eval.tasks=0", "run.threads=1",
    ]  # fmt: skip
    (tmp_path / "recipe.toml").write_text("[model]\npath = 'x'\n")
    for name in ("first", "again"):
        assert main(["train", "recipe.toml", *words, f"run.name={name}"]) == 0
        said = capfd.readouterr().err
        assert ("supervised start of" in said) == (name == "first")
        assert complete_checkpoints(tmp_path / "runs" / name / "checkpoints")[0][0] == 1
    (start,) = [path for path in (tmp_path / "cache" / "base_models").iterdir() if path.is_dir()]
    base, taught = load_file(f"{tiny_model}/model.safetensors"), load_file(start / "model.safetensors")
    assert any(not torch.equal(tensor, taught[name]) for name, tensor in base.items())
    model = json.loads((tmp_path / "runs" / "first" / "model.json").read_text())
    assert model["model.safetensors"][0] == os.path.getsize(start / "model.safetensors")
