"""The main job, for real: every process, a few steps, from the command line."""

import json
import os
import signal
import subprocess
import sys

import pytest

from asyncrl.cli import main
from asyncrl.run.metrics import read_metrics
from tests.runs import RECIPE, environment, processes_of, to_its_end, wait_for_step, weight_folders

pytestmark = pytest.mark.slow
SUMMARY_KEYS = {
    "eval_before", "eval_after", "steps", "wall_s", "train_wall_s", "max_staleness", "staleness", "groups", "tokens",
    "sync_pause_s", "seed",
}  # fmt: skip


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("e2e")
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def command(workplace, *overrides):
    return [
        sys.executable, "-m", "asyncrl", "train", str(workplace / "recipe.toml"),
        f"run.folder={workplace / 'runs'}", *overrides,
    ]  # fmt: skip


def train(workplace, *overrides):
    return to_its_end(command(workplace, *overrides))


@pytest.fixture(scope="module")
def finished(workplace):
    done = train(workplace, "run.name=main", "buffer.max_staleness=1")
    assert done.returncode == 0, done.stderr
    return workplace / "runs" / "main"


def test_a_run_leaves_a_summary_with_every_promised_field(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary) >= SUMMARY_KEYS
    for block in (summary["eval_before"], summary["eval_after"]):
        assert set(block) >= {"mean", "ci_low", "ci_high", "tasks", "samples"}
        assert block["tasks"] == 20
    assert summary["steps"] == 3
    assert summary["groups"]["trained"] == 12
    assert summary["staleness"]["max"] <= summary["max_staleness"] == 1
    assert sum(summary["staleness"]["histogram"].values()) == summary["tokens"]["trained"]
    assert summary["tokens"]["generated"] >= summary["tokens"]["trained"] > 0


def test_every_trained_token_is_within_the_staleness_bound(finished):
    import pyarrow.parquet as pq

    for path in sorted((finished / "trajectories").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            sampled = [v for v, m in zip(row["versions"], row["loss_mask"], strict=True) if m]
            assert all(row["step"] - 1 - 1 <= v <= row["step"] - 1 for v in sampled)
            assert len(row["token_ids"]) == len(row["versions"]) == len(row["behavior_logprobs"])


def test_an_episode_of_a_run_is_played_again_by_its_actions_and_by_its_policy(finished, capsys, monkeypatch):
    import pyarrow.parquet as pq

    monkeypatch.setenv("ASYNCRL_CACHE", environment()["ASYNCRL_CACHE"])
    rows = pq.read_table(finished / "trajectories" / "step-000001.parquet").to_pylist()
    where = f"1/{rows[0]['group']}/{rows[0]['episode_index']}"
    assert main(["replay", str(finished), where]) == 0
    assert "every message, token and reward is as recorded" in capsys.readouterr().out
    assert main(["replay", str(finished), where, "--sample"]) == 0
    said = capsys.readouterr().out
    assert "played again: sampled by version 0, which sampled the recorded one" in said
    files = sorted((finished / "replays").glob("*.parquet"))
    (again,) = pq.read_table(files[1]).to_pylist()
    assert (again["task_json"], again["group"]) == (rows[0]["task_json"], rows[0]["group"])
    assert again["turn_end"] and not again["failure"]


def test_every_turn_is_in_the_conversation_with_its_reward(finished):
    import pyarrow.parquet as pq

    for path in sorted((finished / "trajectories").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            turns = [m for m in row["messages"] if m["turn"] is not None]
            assert [(m["role"], m["turn"]) for m in turns] == [
                ("assistant", number) for number in range(len(row["turn_start"]))
            ]
            assert [m["reward"] for m in turns] == row["turn_reward"]
            assert row["messages"][0]["role"] == "user"


def test_trajectories_open_with_datasets(finished):
    import datasets

    files = [str(p) for p in sorted((finished / "trajectories").glob("*.parquet"))]
    table = datasets.Dataset.from_parquet(files, cache_dir=str(finished / "hf"))
    assert len(table) == 3 * 4 * 4


PLAIN_VLLM = """
import json, sys
from vllm import LLM, SamplingParams

model = LLM(sys.argv[1], dtype="float32", max_model_len=64, enforce_eager=True)
greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
[answer] = model.generate({"prompt_token_ids": list(range(5, 25))}, greedy)
print("TOKENS", json.dumps(list(answer.outputs[0].token_ids)))
"""
PLAIN_VLLM_ENV = {
    "VLLM_PLUGINS": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One process instead of two, and nothing is compiled: both take longer than the rest.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
}


@pytest.fixture(scope="module")
def checkpoint(finished):
    return finished / json.loads((finished / "summary.json").read_text())["checkpoint"]


def test_vllm_without_our_plugin_loads_a_checkpoint_as_transformers_does(checkpoint):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoTokenizer.from_pretrained(checkpoint).chat_template
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    prompt = torch.arange(5, 25)[None]
    expected = model.generate(prompt, do_sample=False, min_new_tokens=4, max_new_tokens=4, eos_token_id=None)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_VLLM, str(checkpoint)],
        env={**os.environ, **PLAIN_VLLM_ENV},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"TOKENS {expected[0, 20:].tolist()}" in done.stdout


def test_a_checkpoint_is_evaluated_as_at_the_end_of_its_run(workplace, finished, checkpoint, tmp_path):
    after = json.loads((finished / "summary.json").read_text())["eval_after"]
    arguments = (
        f"--env gridworld --tasks 20 --recipe {finished / 'config.json'} --out {tmp_path / 'result.json'}"
    )
    done = to_its_end([sys.executable, "-m", "asyncrl", "eval", str(checkpoint), *arguments.split()])
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["tasks"], found["failed"]) == (20, {})
    assert found["mean"] == pytest.approx(after["mean"], abs=0.1)


def test_a_run_leaves_metrics_a_plot_and_logs_and_nothing_running(finished):
    steps = read_metrics(finished)
    assert [s["step"] for s in steps] == [1, 2, 3]
    assert all(s["mismatch/max"] < 1e-3 or s["staleness/max"] > 0 for s in steps)
    assert (finished / "reward.png").stat().st_size > 1000
    assert {p.stem for p in (finished / "logs").glob("*.log")} == {
        "buffer",
        "engine-0",
        "rollout-0",
        "trainer",
    }
    assert not processes_of(finished)
    assert not weight_folders("main")


def test_a_finished_run_is_not_overwritten(workplace, finished):
    done = train(workplace, "run.name=main")
    assert done.returncode == 2
    assert "already holds a run" in done.stderr


def test_on_policy_runs_repeat_and_train_only_fresh_tokens(workplace):
    losses = []
    for name in ("first", "second"):
        done = train(workplace, f"run.name={name}", "buffer.max_staleness=0", "eval.tasks=0", "run.seed=5")
        assert done.returncode == 0, done.stderr
        steps = read_metrics(workplace / "runs" / name)
        assert [s["staleness/max"] for s in steps] == [0, 0, 0]
        assert all(abs(s["mismatch/max"]) < 1e-4 for s in steps)
        losses.append([(s["loss/total"], s["grad_norm"], s["reward/mean"]) for s in steps])
    for one, other in zip(*losses, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_an_interrupted_run_says_so_and_leaves_nothing_running(workplace):
    run = workplace / "runs" / "cut"
    process = subprocess.Popen(
        command(workplace, "run.name=cut", "train.num_steps=500", "eval.tasks=0"),
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_step(run, 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    told = process.stderr.read()
    saved = run / "checkpoints" / f"step-{len(read_metrics(run)):06d}"
    assert "interrupted: saving a last checkpoint" in told
    assert f"the newest checkpoint is {saved}\n" in told
    assert told.endswith(f"asyncrl: interrupted\nasyncrl: resume the run: asyncrl train --resume {run}\n")
    assert (saved / "complete.json").exists()
    assert not (run / "trainer.json").exists(), "a run that was interrupted is not finished"
    assert not processes_of(run)
    assert not weight_folders("cut")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.num_stepz=1", "train.num_stepz: unknown key"),
        ("train.num_steps=many", "train.num_steps: input should be a valid integer"),
        ("model.path=./nowhere", "model.path: there is no folder"),
        (
            "env.config={sise=3}",
            "env.config.sise: environment 'gridworld' has no such setting; did you mean 'size'",
        ),
        ("env.name=gridwrld", "unknown environment 'gridwrld'"),
        ("env.task_file=nowhere.jsonl", "nowhere.jsonl: cannot be read"),
        ("algo.preset=grpp", "unknown preset 'grpp'"),
        ("run.folder=/proc/none", "cannot be written"),
    ],
)
def test_bad_input_is_refused_by_name_before_anything_starts(workplace, override, message):
    done = train(workplace, "run.name=bad", override)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (workplace / "runs" / "bad").exists()
    assert not processes_of(workplace / "runs" / "bad")
