"""A run's model on a hub: its files, its card, and what is refused.

The hub is a stand-in on this machine; the client is the real one, in a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.push.command import lay_out
from asyncrl.extensions.push.model_card import model_card
from asyncrl.run.checkpoints import MARKER, STATE, VALUES
from tests.rows.hub_server import LARGE, TOKEN, Hub

SUMMARY = {
    "eval_before": {"mean": 0.25, "ci_low": 0.2, "ci_high": 0.3, "tasks": 200},
    "eval_after": {"mean": 0.5, "ci_low": 0.44, "ci_high": 0.56, "tasks": 200},
    "evals": [{"version": 4, "mean": 0.375, "tasks": 50}],
    "checkpoint": "checkpoints/step-000008",
}


def write_checkpoint(run, step):
    path = run / "checkpoints" / f"step-{step:06d}"
    (path / STATE).mkdir(parents=True)
    (path / STATE / VALUES).write_text("{}")
    files = {
        "config.json": "{}",
        "model.safetensors": f"{step}" * LARGE,
        "tokenizer.json": "{}",
        "chat_template.jinja": "x",
        MARKER: "{}",
    }
    for name, text in files.items():
        (path / name).write_text(text)
    return path


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    for step in (4, 8):
        adapter = write_checkpoint(folder, step) / "adapter"
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text("a" * LARGE)
        (adapter / "adapter_config.json").write_text(
            json.dumps({"r": 4, "base_model_name_or_path": "/home/me/x"})
        )
        (adapter / "README.md").write_text("peft's own")
    config = parse_config(
        {
            "model": {"path": "org/base"},
            "data": {"train": "org/sums", "heldout": str(tmp_path / "secret" / "held.jsonl"), "reward": "math"},
            "lora": {"rank": 4},
            "train": {"learning_rate": 3e-5},
        },
        strict=False,
    )  # fmt: skip
    (folder / "config.json").write_text(config.model_dump_json())
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "reward.png").write_bytes(b"a picture")
    steps = [{"step": n, "reward/mean": n / 10} for n in range(1, 9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


@pytest.fixture
def hub(tmp_path):
    made = Hub(tmp_path / "hub")
    yield made
    made.close()


@pytest.fixture
def push(hub, tmp_path):
    def pushed(*words, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
        return subprocess.run(
            [sys.executable, "-m", "asyncrl", "push", *map(str, words)],
            env=kept | own | {"HF_HUB_DISABLE_XET": "1"} | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return pushed


def head_of(card):
    return yaml.safe_load(card.split("---")[1])


def test_a_repository_gets_the_model_and_its_card_and_nothing_of_the_trainer(run, tmp_path):
    (tmp_path / "out").mkdir()
    assert lay_out(run, "me/mine", tmp_path / "out") == 8
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == [
        "README.md", "chat_template.jinja", "config.json", "model.safetensors", "reward.png", "tokenizer.json"
    ]  # fmt: skip
    card = (tmp_path / "out" / "README.md").read_text()
    assert head_of(card) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "org/base",
        "datasets": ["org/sums"],
        "tags": ["asyncrl", "reinforcement-learning"],
    }
    assert "| before training | 0.250 | 0.200 to 0.300 | 200 |" in card
    assert "| after training | 0.500 | 0.440 to 0.560 | 200 |" in card
    assert "![Reward by step](reward.png)" in card and "| 8 | 0.8 |" in card
    assert '"learning_rate": 3e-05' in card
    # No folder of this machine is told.
    assert str(tmp_path) not in card and "`held.jsonl`, never trained on" in card


def test_a_card_of_an_earlier_step_has_its_evaluation_and_its_part_of_the_curve(run, tmp_path):
    (tmp_path / "out").mkdir()
    assert lay_out(run, "me/mine", tmp_path / "out", step=4) == 4
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| after step 4 | 0.375 |  | 50 |" in card
    assert "after training" not in card and "| 4 | 0.4 |" in card and "| 5 | 0.5 |" not in card
    assert (tmp_path / "out" / "model.safetensors").read_text().startswith("44")


def test_an_adapter_goes_alone_with_its_tokenizer_and_names_its_base(run, tmp_path):
    (tmp_path / "out").mkdir()
    lay_out(run, "me/mine", tmp_path / "out", adapter=True)
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == [
        "README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "reward.png",
        "tokenizer.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text()) == {
        "r": 4,
        "base_model_name_or_path": "org/base",
    }
    card = (tmp_path / "out" / "README.md").read_text()
    assert head_of(card)["library_name"] == "peft" and "AutoPeftModelForCausalLM" in card


@pytest.mark.parametrize(("objective", "tag"), [("likelihood", "sft"), ("dpo", "dpo")])
def test_a_model_of_supervised_training_is_not_called_one_of_reinforcement_learning(objective, tag):
    config = parse_config(
        {"model": {"path": "org/base"}, "env": {"name": "gridworld"}, "sft": {"objective": objective}}
    )
    steps = [{"step": 1, "sft/loss": 0.5}]
    assert head_of(model_card(config, "me/mine", 1, {}, steps))["tags"] == ["asyncrl", tag]


@pytest.mark.slow
def test_a_push_is_one_commit_of_small_files_and_large_ones(run, hub, push):
    done = push(run, "me/mine", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{hub.url}/me/mine/commit/")
    files = hub.models["me/mine"]
    assert files["model.safetensors"] == b"8" * LARGE
    assert files["reward.png"] == b"a picture"
    assert files["README.md"].decode().startswith("---\nlibrary_name: transformers")
    assert hub.private_models == {"me/mine"} and hub.commits == ["Step 8"]
    # Again, into the repository that is there now.
    assert push(run, "me/mine", "--step", 4).returncode == 0
    assert files["model.safetensors"] == b"4" * LARGE and hub.commits == ["Step 8", "Step 4"]


@pytest.mark.slow
def test_what_the_hub_refuses_is_said_with_what_it_needs(run, hub, push):
    done = push(run, "me/mine", HF_TOKEN="hf_wrong")
    assert done.returncode == 2 and "the hub refuses 'me/mine'" in done.stderr
    assert "it needs HF_TOKEN, of an account that may write there" in done.stderr
    done = push(run, "me/mine", HF_HUB_OFFLINE="1")
    assert done.returncode == 2 and "HF_HUB_OFFLINE is set" in done.stderr
    assert hub.models == {}


def test_what_is_no_run_or_has_no_such_checkpoint_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="is no folder of a run"):
        lay_out(tmp_path, "me/mine", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"has checkpoints of the steps \[4, 8\], got 5"):
        lay_out(run, "me/mine", tmp_path / "out", step=5)
    shutil.rmtree(run / "checkpoints" / "step-000008" / "adapter")
    with pytest.raises(ConfigError, match="has no adapter"):
        lay_out(run, "me/mine", tmp_path / "out", adapter=True)
