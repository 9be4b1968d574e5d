"""Recipes of Tinker's cookbook, unchanged, against our server: data and tokenizer lie in the current folder."""

import json

import pytest

from tests.benchmark_env import benchmark_python
from tests.extensions.tinker.test_sdk import HERE, PACKAGES, Server

pytestmark = pytest.mark.slow
NAME = "Qwen/Qwen3-8B-Base"
"""A name that the cookbook knows, of a model that it renders as plain text."""
CONTEXT = 1024
SMALL = [f"model_name={NAME}", "max_steps=2", "behavior_if_log_dir_exists=delete"]


def write_set(folder, name, rows, header=""):
    target = folder / name
    target.mkdir(parents=True)
    for split in ("train", "test"):
        (target / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if header:
        (target / "README.md").write_text(header)


GSM8K = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: train.jsonl}
  - {split: test, path: test.jsonl}
---
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the recipes ask a hub for."""
    from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save

    found = tmp_path_factory.mktemp("cookbook")
    sums = [(f"What is {a} + {b}?", str(a + b)) for a in range(4) for b in range(4)]
    tokenizer = build_tokenizer([text for pair in sums for text in pair] * 20, 400, CONTEXT)
    (found / "Qwen").mkdir()
    save(
        found / NAME,
        build_model(len(tokenizer), 64, 2, 2, CONTEXT, tokenizer.eos_token_id, seed=0),
        tokenizer,
    )
    turns = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in sums]
    write_set(found, "HuggingFaceH4/no_robots", [{"messages": one} for one in turns])
    write_set(found, "openai/gsm8k", [{"question": q, "answer": f"#### {a}"} for q, a in sums], GSM8K)
    said = [f"\n\nHuman: {q}\n\nAssistant: " for q, _ in sums]
    pairs = [{"chosen": one + a, "rejected": f"{one}no"} for one, (_, a) in zip(said, sums, strict=True)]
    write_set(found, "Anthropic/hh-rlhf", pairs)
    write_set(found, "zwhe99/DeepMath-103K", [{"question": q} for q, _ in sums])
    return found


@pytest.fixture(scope="module")
def python(pytestconfig):
    return benchmark_python(pytestconfig.cache.mkdir("tinker"), PACKAGES, dependencies=False)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server"), str(folder / NAME), NAME, rank=32)
    yield made
    made.stop()


def played(server, python, folder, recipe, *settings):
    """Run a recipe to its end; return its metrics, a line a step."""
    log = folder / recipe
    server.run(python, "-m", f"tinker_cookbook.recipes.{recipe}", f"log_path={log}", *settings, cwd=folder)
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def test_the_loop_of_supervised_training(server, python, folder):
    settings = [f"model_name={NAME}", "batch_size=4", "max_steps=3", "save_every=2", "learning_rate=1e-2"]
    steps = played(server, python, folder, "sl_loop", *settings, "max_length=512")
    assert len(steps) == 3
    assert steps[2]["train_mean_nll"] < steps[0]["train_mean_nll"]


def test_the_loop_of_reinforcement_learning(server, python, folder):
    settings = [f"model_name={NAME}", "batch_size=2", "group_size=2", "max_tokens=8", "max_steps=2"]
    # Its own default is a loss of the service whose formula is not published.
    steps = played(server, python, folder, "rl_loop", *settings, "loss_fn=importance_sampling")
    # A model of random weights writes no boxed number.
    assert [step["reward/total"] for step in steps] == [0.0, 0.0]


def test_learning_from_preferences(server, python, folder):
    steps = played(
        server, python, folder, "preference.dpo.train", *SMALL, "batch_size=4", "learning_rate=1e-3"
    )
    assert len(steps) >= 2 and any("dpo_loss" in name for name in steps[0])


def test_distillation_from_a_teacher_of_the_policys_own_samples(server, python, folder):
    settings = [
        f"teacher_model={NAME}",
        "dataset=deepmath",
        "groups_per_batch=2",
        "group_size=2",
        "max_tokens=8",
    ]
    steps = played(
        server,
        python,
        folder,
        "distillation.on_policy_distillation",
        *SMALL,
        *settings,
        "lora_rank=8",
        "save_every=0",
    )
    assert len(steps) >= 2 and "teacher_kl" in steps[0]


def test_an_environment_of_ours_in_the_cookbooks_loop(server, python, folder, pytestconfig):
    log, root = folder / "env", str(pytestconfig.rootpath)
    server.run(python, str(HERE / "sdk_env.py"), str(log), NAME, "gridworld", cwd=folder, PYTHONPATH=root)
    steps = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) >= 2
    assert all(0.0 <= step["env/all/reward/total"] <= 1.0 for step in steps if "env/all/reward/total" in step)
    assert [step["env/all/total_episodes"] for step in steps[:2]] == [4, 4]
    assert steps[0]["test/env/all/total_episodes"] == 2
