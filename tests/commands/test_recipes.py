"""`asyncrl recipes`: one line each, and copies that run from wherever they are put."""

import filecmp
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.commands.recipes import first_sentence
from asyncrl.config import DEFAULT_OBJECTIVE, PACKAGED_RECIPES, known_recipes, load_config
from asyncrl.env.registry import load_env

PACKAGED = sorted(path.parent.name for path in PACKAGED_RECIPES.glob("*/recipe.toml"))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_each_recipe_is_listed_with_its_first_sentence(capsys):
    assert main(["recipes"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == PACKAGED and len(lines) >= 22
    assert lines["team_policies"].endswith("one plays the keepers of the stores it asks")
    assert all(20 < len(line) < 150 for line in lines.values())


def test_a_local_recipe_is_listed_with_its_place(capsys):
    Path("recipes/mine").mkdir(parents=True)
    Path("recipes/mine/recipe.toml").write_text("# Mine. With more.\n[model]\n")
    assert main(["recipes"]) == 0
    assert "Mine  [recipes/mine/recipe.toml]" in capsys.readouterr().out


def test_a_comment_of_several_lines_is_one_sentence(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("# One line (Dr. No)\n# and its end. Another.\n\n# Not this\n")
    assert first_sentence(recipe) == "One line (Dr. No) and its end"


@pytest.mark.parametrize("name", PACKAGED)
def test_a_copy_has_everything_and_names_its_own_files(name, capsys):
    assert main(["recipes", "copy", name]) == 0
    copy = Path("recipes", name)
    assert f"asyncrl train {copy}" in capsys.readouterr().out
    compared = filecmp.dircmp(PACKAGED_RECIPES / name, copy, ignore=["__pycache__"])
    assert (compared.left_only, compared.right_only, compared.diff_files) == ([], [], [])
    assert known_recipes()[name] == copy / "recipe.toml"
    copied, packaged = load_config(name), load_config(PACKAGED_RECIPES / name)
    assert load_env(copied.env.name)
    if name == "agent_grpo":
        assert copied.env.config["callable"] == f"{copy.absolute()}/agent.py:play"
        assert packaged.env.config["callable"] == f"{PACKAGED_RECIPES}/agent_grpo/agent.py:play"
    own = packaged.model_dump_json(exclude={"run"}).replace(
        f"{PACKAGED_RECIPES}/{name}/", f"{copy.absolute()}/"
    )
    assert copied.model_dump_json(exclude={"run"}) == own


def test_a_copy_never_overwrites_and_may_go_anywhere(capsys):
    assert main(["recipes", "copy", "gridworld_grpo", "elsewhere/grid"]) == 0
    assert main(["recipes", "copy", "gridworld_grpo", "elsewhere/grid"]) == 2
    assert "'elsewhere/grid' is there already" in capsys.readouterr().err
    assert load_config("elsewhere/grid").env.name == "gridworld"
    assert main(["recipes", "copy", "gridwrld_grpo"]) == 2
    assert "did you mean 'gridworld_grpo'" in capsys.readouterr().err


def test_task_folders_of_a_copy_are_found(capsys):
    assert main(["recipes", "copy", "terminal_grpo"]) == 0
    config = load_config("terminal_grpo", ['env.config={"folder": "recipes/terminal_grpo/tasks"}'])
    tasks = list(load_env("terminal").tasks("train", "terminal", **config.env.config))
    assert [task.id for task in tasks] == ["broken-backup", "csv-to-json", "release-link"]


NAMED = {"dapo_4b_8x80gb": "dapo", "distill_1_7b_80gb": "opd", "team_grpo": "dr_mas"}
"""Recipes that are of a method of their own."""


@pytest.mark.parametrize("name", PACKAGED)
def test_a_recipe_trains_with_the_default_objective_unless_its_method_is_what_it_is_of(name):
    algo = load_config(name).algo
    assert algo["preset"] == NAMED.get(name, DEFAULT_OBJECTIVE["preset"])
    branches = load_config(name).env.name in ("agent", "threads")
    assert algo.get("baseline_unit", "branches") == ("episodes" if branches else "branches")
