"""A study's file: the runs it names, and what is refused before any of them."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.study.runner import check_study
from asyncrl.extensions.study.study_file import read_study, study_run, tuning_runs

FILE = """
title = "Two methods"
recipe = "gridworld_grpo"

[settings]
train.num_steps = 3
env.config = { size = 4, max_turns = 5 }

[conditions.near]
env.config.size = 3
[conditions.other]
recipe = "calculator_grpo"

[methods.grpo]
algo.preset = "grpo"
[methods.dapo]
algo.preset = "dapo"
train.num_steps = 5

[tuning]
values = { "train.learning_rate" = [1e-4, 1e-3], "train.num_minibatches" = [1, 2] }
seeds = 2
"""


@pytest.fixture
def read(tmp_path):
    def read(text=FILE):
        (tmp_path / "study.toml").write_text(text)
        return read_study(tmp_path / "study.toml")

    return read


def test_a_run_has_the_settings_of_all_then_its_conditions_then_its_methods_then_the_tuned_ones(read):
    config = study_run(read(), "dapo", "near", 7, {"train.learning_rate": 0.5}).config()
    assert (config.env.name, config.env.config) == ("gridworld", {"size": 3, "max_turns": 5})
    assert (config.train.num_steps, config.train.learning_rate, config.run.seed) == (5, 0.5, 7)
    assert config.algo["preset"] == "dapo"


def test_a_condition_may_start_from_a_recipe_of_its_own(read):
    config = study_run(read(), "grpo", "other", 0, {}).config()
    assert (config.env.name, config.train.num_steps) == ("calculator", 3)


def test_the_tuning_tries_all_combinations_with_seeds_that_the_comparison_does_not_use(read):
    study = read()
    runs = list(tuning_runs(study))
    assert len(runs) == 2 * 2 * 4 * 2
    assert {run.seed for run in runs} == {1000, 1001}
    assert [dict(run.tuned) for run in runs[:8:2]] == [
        {"train.learning_rate": rate, "train.num_minibatches": parts}
        for rate in (1e-4, 1e-3)
        for parts in (1, 2)
    ]


def test_what_tells_runs_apart_changes_with_their_settings(read):
    first, same, other = (
        study_run(read(text), "grpo", "near", 0, {})
        for text in (FILE, FILE.replace("Two methods", "Both"), FILE.replace("size = 3", "size = 6"))
    )
    assert first.key == same.key
    assert first.key["settings"] != other.key["settings"]


def test_records_of_a_study_with_files_of_its_own_hold_in_another_folder(read, tmp_path):
    text = FILE.replace("[settings]", '[settings]\nenv.name = "own.py:Env"')
    run = study_run(read(text), "grpo", "near", 0, {})
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "study.toml").write_text(text)
    there = study_run(read_study(moved / "study.toml"), "grpo", "near", 0, {})
    assert f'env.name="{moved}/own.py:Env"' in there.overrides
    assert run.key == there.key


def test_files_that_settings_name_are_beside_the_study(read, tmp_path):
    study = read(FILE.replace("[conditions.near]", '[conditions.near]\nenv.task_file = "tasks.jsonl"'))
    assert study_run(study, "grpo", "near", 0, {}).config().env.task_file == str(tmp_path / "tasks.jsonl")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Two methods"', "", "title: missing; it must be given"),
        ("[tuning]", "[tuning]\nseed = 1", "tuning.seed: unknown key; did you mean 'seeds'? allowed: values, seeds"),
        ("[settings]", "baseline = 'ppo'\n[settings]", "there is no method 'ppo'; allowed: grpo, dapo"),
        ("[settings]", "measure = 'tokens'\n[settings]", "measure = 'tokens' needs the held-out success to be reached"),
        ("[settings]", "seeds = 0\n[settings]", "seeds: input should be greater than or equal to 1, got 0"),
        ("[settings]", "[settings", "cannot be read"),
        ("[methods.grpo]\n", "[methods.grpo]\nalgo.loss = 3\n", "method 'grpo'"),
        ("num_steps = 3", "num_step = 3", "train.num_step: unknown key; did you mean 'num_steps'?"),
        ("1e-4, 1e-3", "1e-4, -1.0", "train.learning_rate"),
        ("[settings]", "[settings]\neval.tasks = 0", "eval.tasks: a study compares held-out success"),
        (
            "[settings]",
            "measure = 'tokens'\ntarget = 0.9\n[settings]",
            "eval.every: measure = 'tokens' needs evaluations while a run trains",
        ),
        ("train.num_steps = 3", "train = 3", "settings.train"),
    ],
)  # fmt: skip
def test_a_wrong_study_is_refused_with_the_key_before_any_run(read, old, new, message):
    with pytest.raises(ConfigError) as refused:
        check_study(read(FILE.replace(old, new, 1)))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('measure = "metric"', "metric: measure = 'metric' names a metric"),
        ('metric = "entropy"', "got 'entropy' with measure = 'success'"),
        ('measure = "tokens"', "target: measure = 'tokens' needs the held-out success to be reached"),
    ],
)
def test_a_measure_without_what_it_needs_is_refused(read, lines, message):
    with pytest.raises(ConfigError, match=message):
        read(lines + "\n" + FILE)
