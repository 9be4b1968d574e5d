"""A supervised training from its configuration to a model folder, in this process."""

import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.supervised.run import train_supervised
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.train.loop.metrics_log import MetricsLog

WORDS = ("north", "east", "south", "west")


def write_rows(path, number=24, answers=WORDS):
    rows = [
        {"prompt": f"goal {WORDS[i % 4]} of {'some ' * (i % 5)}thing {i}", "completion": answers[i % 4]}
        for i in range(number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_run(folder, model, data, sft, **sections):
    config = {
        "model": {"path": model, "dtype": "float32"},
        "data": {"heldout_share": 0.0, **data},
        "engine": {"max_model_len": 64},
        "sft": {"batch_size": 4, "learning_rate": 1e-3, **sft},
        **sections,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(parse_config(config, strict=False).model_dump_json())
    return folder


def steps_of(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines}


def weights_of(checkpoint):
    return {path.name: load_file(path) for path in sorted(checkpoint.rglob("*.safetensors"))}


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl")


def test_the_model_learns_its_rows_and_the_held_out_loss_is_measured(tiny_model, tmp_path):
    every = write_rows(tmp_path / "every.jsonl", 20, ("north",) * 4)
    lines = Path(every).read_text().splitlines(keepends=True)
    data = {"train": str(tmp_path / "train.jsonl"), "heldout": str(tmp_path / "heldout.jsonl")}
    Path(data["train"]).write_text("".join(lines[:16]))
    Path(data["heldout"]).write_text("".join(lines[16:]))
    sft = {"epochs": 6, "checkpoint_every": 10, "learning_rate": 1e-2, "lr_schedule": "constant"}
    run = write_run(tmp_path / "run", tiny_model, data, sft)
    model = train_supervised(run)
    steps = steps_of(run)
    assert sorted(steps) == list(range(25))
    assert steps[24]["sft/loss"] < 0.1 < 4 < steps[1]["sft/loss"]
    measured = {step: line["sft/heldout_loss"] for step, line in steps.items() if "sft/heldout_loss" in line}
    assert list(measured) == [0, 10, 20, 24]
    assert measured[24] < 0.1 < 4 < measured[0]
    tokenizer, loaded = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "goal west of thing 23"}], add_generation_prompt=True, return_tensors="pt",
        return_dict=True,
    )  # fmt: skip
    said = loaded.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(said) == f"north{tokenizer.eos_token}"


def test_the_first_step_is_the_mean_loss_of_the_answers_that_transformers_computes(
    tiny_model, tmp_path, rows
):
    run = write_run(tmp_path / "run", tiny_model, {"train": rows}, {"steps": 1, "shuffle": False})
    train_supervised(run)
    tokenizer, model = (
        AutoTokenizer.from_pretrained(tiny_model),
        AutoModelForCausalLM.from_pretrained(tiny_model),
    )
    total, count = torch.zeros(()), 0
    for line in Path(rows).read_text().splitlines()[:4]:
        row = json.loads(line)
        opening = [{"role": "user", "content": row["prompt"]}]
        before = tokenizer.apply_chat_template(opening, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(before, add_special_tokens=False)
        own = tokenizer.encode(row["completion"] + tokenizer.eos_token, add_special_tokens=False)
        logp = model(torch.tensor([ids + own])).logits.log_softmax(-1)
        total -= sum(logp[0, len(ids) - 1 + i, token] for i, token in enumerate(own))
        count += len(own)
    loss = total / count
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    found = steps_of(run)[1]
    assert found["sft/learned_tokens"] == count
    assert found["sft/loss"] == pytest.approx(float(loss), abs=1e-5)
    assert found["sft/grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_training_that_was_killed_and_resumed_is_the_one_that_was_not(
    tiny_model, tmp_path, rows, monkeypatch
):
    sft = {"epochs": 2, "checkpoint_every": 3, "packing": True, "max_length": 40, "batch_size": 2}
    whole = train_supervised(write_run(tmp_path / "whole", tiny_model, {"train": rows}, sft))
    run = write_run(tmp_path / "killed", tiny_model, {"train": rows}, sft)
    write = MetricsLog.write

    def killed(log, step, metrics):
        write(log, step, metrics)
        if step == 8:
            raise MemoryError("killed")

    monkeypatch.setattr(MetricsLog, "write", killed)
    with pytest.raises(MemoryError):
        train_supervised(run)
    monkeypatch.undo()
    # The write of the checkpoint may still have been going on.
    assert [step for step, _ in complete_checkpoints(run / "checkpoints")][-1:] == [3]
    resumed = train_supervised(run)
    assert resumed.name == whole.name
    expected, found = weights_of(whole), weights_of(resumed)
    assert found.keys() == expected.keys() == {"model.safetensors", "training.safetensors"}
    for file, tensors in expected.items():
        assert tensors.keys() == found[file].keys()
        assert all(torch.equal(tensor, found[file][name]) for name, tensor in tensors.items())
    before, after = steps_of(tmp_path / "whole"), steps_of(run)
    assert {step: line["sft/loss"] for step, line in before.items()} == {
        step: line["sft/loss"] for step, line in after.items()
    }


def test_an_interrupted_training_saves_the_step_it_was_in(tiny_model, tmp_path, rows, monkeypatch, capfd):
    run = write_run(tmp_path / "run", tiny_model, {"train": rows}, {"steps": 9, "checkpoint_every": 0})
    write = MetricsLog.write

    def interrupted(log, step, metrics):
        write(log, step, metrics)
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(MetricsLog, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_supervised(run)
    assert [step for step, _ in complete_checkpoints(run / "checkpoints")] == [3]
    assert (
        f"interrupted after step 3, which is saved; go on with: asyncrl sft --resume {run}"
        in capfd.readouterr().err
    )
    monkeypatch.undo()
    assert train_supervised(run).name == "step-000009"


def test_rows_that_have_changed_are_refused_when_a_training_is_resumed(tiny_model, tmp_path, rows):
    sft = {"steps": 4, "checkpoint_every": 2}
    run = write_run(tmp_path / "run", tiny_model, {"train": rows}, sft)
    train_supervised(run)
    others = write_rows(tmp_path / "others.jsonl", answers=WORDS[::-1])
    write_run(run, tiny_model, {"train": others}, sft | {"steps": 6})
    with pytest.raises(ConfigError, match="was trained on other rows"):
        train_supervised(run)


def test_packing_changes_which_rows_a_step_has_and_not_what_they_teach(tiny_model, tmp_path, rows):
    # With room for all rows in one step, both are one step on the same rows.
    for name, sft in {"apart": {"batch_size": 24}, "packed": {"batch_size": 64, "packing": True}}.items():
        train_supervised(write_run(tmp_path / name, tiny_model, {"train": rows}, sft))
    apart, packed = steps_of(tmp_path / "apart")[1], steps_of(tmp_path / "packed")[1]
    assert apart["sft/rows"] == packed["sft/rows"] == 24
    assert packed["sft/loss"] == pytest.approx(apart["sft/loss"], abs=1e-5)
    assert packed["sft/grad_norm"] == pytest.approx(apart["sft/grad_norm"], rel=1e-4)


def test_an_adapter_is_trained_alone_and_written_merged_too(tiny_model, tmp_path, rows):
    run = write_run(tmp_path / "run", tiny_model, {"train": rows}, {"steps": 3}, lora={"rank": 4})
    model = train_supervised(run)
    assert (model / "adapter" / "adapter_config.json").is_file()
    before, after = load_file(f"{tiny_model}/model.safetensors"), load_file(model / "model.safetensors")
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed
    assert all("_proj" in name for name in changed)


def test_the_episodes_that_a_run_has_solved_are_learned_by_their_tokens(tiny_model, tmp_path):
    from asyncrl.data.table import write_trajectories
    from asyncrl.extensions.supervised.episodes import episodes
    from tests.train.factories import group

    run = tmp_path / "earlier"
    (run / "trajectories").mkdir(parents=True)
    groups = [group("t0", [0.0, 1.0, 0.5]), group("t1", [1.0])]
    write_trajectories(run / "trajectories" / "step-000001.parquet", 1, groups)
    trajectories = [t for g in groups for t in g.trajectories]
    found = list(episodes(run, 1.0, 1000))
    best = [t for t in trajectories if t.reward == 1.0]
    assert len(found) == len(best) == 2
    for row, trajectory in zip(found, best, strict=True):
        assert row.ids.tolist() == trajectory.token_ids[: len(row.ids)].tolist()
        assert int(row.mask.sum()) == int(trajectory.loss_mask.sum())
        assert row.mask[-1]
    assert len(list(episodes(run, 0.5, 1000))) == 3
    assert list(episodes(run, 0.0, 2)) == []
