"""The study of the recipes: which runs are still to be made, and the table of those that have ended."""

import pytest

from tests.scripts import load_script


@pytest.fixture
def study():
    return load_script("studies/study_recipes")


def record(study, recipe, seed, before, after, **changed):
    made = {
        "recipe": recipe,
        "seed": seed,
        "settings": study.settings(recipe),
        "before": before,
        "after": after,
    }
    return made | {"steps": 20, "tasks": 200} | changed


def test_recipes_for_cpus_are_those_that_make_their_own_model(study):
    names = study.cpu_recipes()
    assert {"gridworld_grpo", "sql_grpo", "team_policies"} < set(names)
    assert not any("qwen3" in name for name in names)


def test_runs_of_changed_recipes_and_runs_without_a_record_are_made(study):
    records = [
        record(study, "sql_grpo", 0, 0.3, 0.7),
        record(study, "office_grpo", 0, 0.2, 0.9, settings="of another day"),
        record(study, "office_grpo", 1, 0.2, 0.9),
    ]
    assert study.missing(records, ["office_grpo", "sql_grpo"], 2) == [("office_grpo", 0), ("sql_grpo", 1)]


def test_the_table_has_a_column_for_each_seed_and_the_mean_gain(study):
    records = [record(study, "sql_grpo", seed, 0.3, after) for seed, after in ((0, 0.7), (2, 0.8))]
    records.append(record(study, "office_grpo", 1, 0.25, 0.2))
    assert study.table(records, 3).splitlines() == [
        "| recipe | steps | tasks | seed 0 | seed 1 | seed 2 | mean gain |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| [office_grpo](../recipes/office_grpo/README.md) | 20 | 200 |  | 0.250 to 0.200 |  | -0.05 |",
        "| [sql_grpo](../recipes/sql_grpo/README.md) | 20 | 200 | 0.300 to 0.700 |  | 0.300 to 0.800 | +0.45 |",
    ]


def test_a_run_that_is_made_again_has_a_folder_of_its_own(study, tmp_path):
    assert study.free_name("sql_grpo-1", tmp_path) == "sql_grpo-1"
    for name in ("sql_grpo-1", "sql_grpo-1-1"):
        (tmp_path / name).mkdir()
    assert study.free_name("sql_grpo-1", tmp_path) == "sql_grpo-1-2"
