"""A study for real, on one engine: each run once, held-out curves, and what is left after an interruption."""

import json

import numpy as np
import pytest

from asyncrl.cli import main

pytestmark = pytest.mark.slow
STUDY = """
title = "Two methods"
recipe = "calculator_grpo"
seeds = 1

[settings]
run.threads = 1
model.path = "{model}"
engine.max_model_len = 256
engine.max_num_seqs = 64
rollout = {{ group_size = 4, max_tokens_per_turn = 8, max_turns = 1 }}
buffer = {{ groups_per_step = 2, max_staleness = 1 }}
train = {{ num_steps = 3, learning_rate = 1e-4, warmup_steps = 0 }}
eval = {{ tasks = 4, every = 1 }}

[methods.grpo]
algo.preset = "grpo"
[methods.dapo]
algo.preset = "dapo"
"""


def test_a_study_makes_each_run_once_and_evaluates_its_versions_on_the_engine_that_all_share(
    tiny_model, tmp_path, capfd
):
    file = tmp_path / "two.toml"
    file.write_text(STUDY.format(model=tiny_model))

    assert main(["study", str(file), "--only", "dapo"]) == 0
    said = capfd.readouterr()
    assert "run 1/1: dapo, seed 0" in said.err
    assert "1 of 2 runs have ended so far." in said.out

    assert main(["study", str(file)]) == 0
    assert "run 1/1: grpo, seed 0" in capfd.readouterr().err

    records = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
    assert [record["key"]["method"] for record in records] == ["dapo", "grpo"]
    for record in records:
        assert "error" not in record, record["error"]
        versions = [one["version"] for one in record["held_out"]]
        # Of versions that wait to be evaluated the newest is taken.
        assert versions == sorted({0, *versions, 3})
        assert set(versions) <= {0, 1, 2, 3}
        rollouts, tokens = ([step[unit] for step in record["steps"]] for unit in ("rollouts", "tokens"))
        assert np.minimum(rollouts, [8, 16, 24]).tolist() == [8, 16, 24]
        assert 0 < tokens[0] <= tokens[1] <= tokens[2]
        assert [one["tokens"] for one in record["held_out"]] == [
            [0, *tokens][version] for version in versions
        ]
        assert (record["tasks"], record["staleness_max"] <= 1) == (4, True)
    assert records[0]["start"] == records[1]["start"] != ""
    # The same seed plays the base model the same.
    assert records[0]["held_out"][0] == records[1]["held_out"][0]

    assert main(["study", str(file)]) == 0
    said = capfd.readouterr()
    assert "starting an engine" not in said.err
    assert "so far" not in said.out
    assert (tmp_path / "two.png").exists()


def test_a_run_of_several_engines_has_its_own(tiny_model, tmp_path, capfd):
    file = tmp_path / "two_engines.toml"
    method = """
[methods."two engines"]
engine.count = 2
"""
    file.write_text(STUDY.format(model=tiny_model).partition("[methods.grpo]")[0] + method)

    assert main(["study", str(file)]) == 0
    said = capfd.readouterr().err
    assert "run 1/1: two engines, seed 0" in said and "starting an engine for" not in said
    (line,) = (tmp_path / "two_engines.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert "error" not in record, record["error"]
    assert [record["held_out"][place]["version"] for place in (0, -1)] == [0, 3]


def test_a_run_of_several_policies_has_its_own_engines_and_a_metric_of_it_is_compared(
    tiny_model, tmp_path, capfd
):
    file = tmp_path / "team.toml"
    settings, _, methods = STUDY.partition("[methods.grpo]")
    settings = settings.replace('"calculator_grpo"', '"team_policies"').replace("every = 1", "every = 0")
    head = 'measure = "metric"\nmetric = "{metric}"\n' + settings
    file.write_text(head.format(model=tiny_model, metric="reward/mena") + "[methods.grpo]" + methods)

    assert main(["study", str(file), "--only", "grpo"]) == 0
    said = capfd.readouterr().err
    assert "starting an engine for" not in said
    assert "no step has a number 'reward/mena'; near: reward/mean" in said

    file.write_text(head.format(model=tiny_model, metric="reward/mean") + "[methods.grpo]" + methods)
    assert main(["study", str(file), "--only", "grpo"]) == 0
    record = json.loads((tmp_path / "team.jsonl").read_text().splitlines()[-1])
    assert "error" not in record, record["error"]
    rewards = [step["reward/mean"] for step in record["steps"]]
    (row,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("| `grpo`")]
    assert row.split("|")[3].strip().startswith(f"{rewards[-1]:.3f}")

    file.write_text(
        head.format(model=tiny_model, metric="policies/keeper/entropy") + "[methods.grpo]" + methods
    )
    assert main(["study", str(file), "--only", "grpo"]) == 0
    said = capfd.readouterr().err
    assert "'policies/keeper/entropy' is of policy 'keeper', which the run has not" in said
