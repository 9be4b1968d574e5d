"""docs/configuration.md is what the settings say about themselves."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from asyncrl.algo.settings import AlgoConfig
from asyncrl.cli import main
from asyncrl.commands.config_page import SELDOM_HEAD, markdown
from asyncrl.config import Config
from asyncrl.config_sections import PolicyConfig
from asyncrl.extensions.settings import composed, composed_section

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def sections():
    yield "policies.NAME", composed_section("policies", PolicyConfig)
    for key, field in composed(Config).model_fields.items():
        if is_table(field):
            yield key, field.annotation


def is_table(field):
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def keys_of(name, section):
    for key, field in section.model_fields.items():
        yield from keys_of(f"{name}.{key}", field.annotation) if is_table(field) else [f"`{name}.{key}`"]


@pytest.mark.slow
def test_the_page_is_the_generated_one(capsys):
    assert main(["config", "--markdown"]) == 0
    made = capsys.readouterr().out
    assert made == PAGE.read_text(), "asyncrl config --markdown > docs/configuration.md"


@pytest.mark.slow
def test_every_key_has_a_meaning_a_default_and_what_is_allowed():
    rows = dict(
        line.strip("| ").split(" | ", 1) for line in markdown().splitlines() if line.startswith("| `")
    )
    keys = {key for name, section in sections() for key in keys_of(name, section)}
    keys |= set(keys_of("algo", AlgoConfig))
    assert set(rows) == keys | {"`algo.preset`"}
    for key, row in rows.items():
        default, allowed, meaning = row.replace("\\|", "/").split(" | ")
        assert default and allowed and meaning.endswith(".") and len(meaning) > 10, key


@pytest.mark.slow
def test_a_reader_must_know_eighty_keys_at_most():
    everyday = markdown().split(SELDOM_HEAD)[0]
    assert 0 < len(re.findall(r"^\| `", everyday, re.MULTILINE)) <= 80


def test_without_a_recipe_the_command_says_what_to_give(capsys):
    assert main(["config"]) == 2
    assert "give a recipe, or --markdown" in capsys.readouterr().err
