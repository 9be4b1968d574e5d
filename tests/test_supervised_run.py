"""Supervised training by its command: killed and resumed, and as the start of a run."""

import json
import os
import sys

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.cli import main
from asyncrl.process_start import start_process
from asyncrl.run.checkpoints import complete_checkpoints
from tests.runs import environment, to_its_end
from tests.waiting import running, wait_until

pytestmark = pytest.mark.slow
WORDS = ("north", "east", "south", "west")


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"question": f"goal {WORDS[i % 4]} {i}", "answer": WORDS[i % 4]}) for i in range(40)]
    path.write_text("\n".join(lines) + "\n")
    return path


def sft(*words):
    return [sys.executable, "-m", "asyncrl", "sft", *map(str, words)]


def test_a_killed_training_is_resumed_and_ends_as_one_that_was_not(tiny_model, tmp_path, rows, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        tiny_model, f"data.train={rows}", "sft.batch_size=4", "sft.epochs=8",
        "sft.checkpoint_every=4", "sft.learning_rate=1e-3", "run.threads=1",
    ]  # fmt: skip
    whole = to_its_end(sft(*words, "run.name=whole", "--out", "taught"))
    assert (whole.returncode, whole.stdout) == (0, "model: taught\n"), whole.stderr
    checkpoints = tmp_path / "runs" / "killed" / "checkpoints"
    with open("killed.err", "w") as errors:
        killed = start_process(sft(*words, "run.name=killed"), environment(), errors.fileno())
    wait_until(lambda: complete_checkpoints(checkpoints), running(killed), limit_s=400)
    killed.kill()
    killed.wait(60)
    (before, _), *_ = complete_checkpoints(checkpoints)
    resumed = to_its_end(sft("--resume", "runs/killed"))
    assert resumed.returncode == 0, resumed.stderr
    (last, checkpoint), *_ = complete_checkpoints(checkpoints)
    assert 4 <= before < last
    assert f"going on after step {before}" in resumed.stderr
    assert resumed.stdout == f"model: runs/killed/checkpoints/{checkpoint.name}\n"
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
