"""A run's configuration has the sections and the keys of the extensions, which the core names nowhere."""

import ast
import re
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from asyncrl import config as core
from asyncrl import config_sections
from asyncrl.config import Config, load_config, override_config, parse_config
from asyncrl.config_sections import EvalConfig, Section, TrainConfig
from asyncrl.conflicts import protocol
from asyncrl.errors import ConfigError
from asyncrl.extensions import settings
from asyncrl.extensions.outer.settings import OuterConfig
from asyncrl.extensions.settings import composed, composed_section
from asyncrl.extensions.table import Row, rows

PLAIN = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


class Own(Section):
    """A section of an extension's own."""

    fixed: ClassVar[bool] = True

    speed: int = Field(1, ge=1)


class Keys(Section):
    """Keys of `train`."""

    lanes: int = Field(2, ge=1)


@pytest.fixture
def with_rows(monkeypatch):
    """Returns what makes a configuration's class with rows of extensions that the test gives."""

    def make(*given):
        monkeypatch.setattr(settings, "rows", lambda seam: (*rows(seam), *given))
        composed_section.cache_clear()
        return composed.__wrapped__(Config)

    yield make
    composed_section.cache_clear()


def row(name, kind):
    return Row(extension="mine", name=name, path=f"{__name__}:{kind.__name__}")


def test_an_extension_adds_a_section_and_keys_of_a_cores_section(with_rows):
    kind = with_rows(row("own", Own), row("train", Keys))
    config = kind.model_validate({**PLAIN, "own": {"speed": 3}, "train": {"lanes": 4, "num_steps": 5}})
    assert (config.section(Own).speed, config.section(Keys).lanes) == (3, 4)
    assert config.section(TrainConfig).num_steps == config.train.num_steps == 5
    assert isinstance(config, Config)
    data = config.model_dump(mode="json")
    assert (data["own"], data["train"]["lanes"]) == ({"speed": 3}, 4)
    assert list(kind.model_fields["train"].annotation.model_fields)[-1] == "lanes"


def test_a_section_that_no_recipe_gives_has_its_defaults(with_rows):
    config = with_rows(row("own", Own), row("train", Keys)).model_validate(PLAIN)
    assert (config.section(Own).speed, config.section(Keys).lanes) == (1, 2)


def test_a_key_that_several_declare_is_refused(with_rows):
    with pytest.raises(ConfigError, match=r"extensions: train\.lanes is a key of several"):
        with_rows(row("train", Keys), row("train", Keys))


def test_a_class_that_is_no_part_of_the_configuration_is_a_crash():
    with pytest.raises(LookupError, match="Own is no part"):
        parse_config(PLAIN).section(Own)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"outer": {"membres": 2}}, r"outer\.membres: unknown key; did you mean 'members'\? allowed: url, "),
        ({"outer": {"members": 0}}, r"outer\.members: .*greater than or equal to 1, got 0"),
        ({"outr": {}}, r"outr: unknown key; did you mean 'outer'\?"),
        ({"train": {"num_step": 1}}, r"train\.num_step: unknown key; did you mean 'num_steps'\?"),
    ],
)
def test_what_an_extension_does_not_know_is_refused_as_in_the_core(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(PLAIN | given)


def test_what_makes_a_run_the_run_it_is_does_not_change_when_it_is_resumed():
    config = parse_config(PLAIN)
    for key in (
        "curriculum.name=vade",
        "opponents.every=3",
        "lora.rank=2",
        "algo.preset=ppo",
        "policies.a.b=1",
    ):
        with pytest.raises(ConfigError, match=f"{key.partition('.')[0]} cannot change"):
            override_config(config, [key])
    assert override_config(config, ["outer.every=3"]).section(OuterConfig).every == 3


def test_a_further_policy_has_what_a_section_says_of_it():
    policies = {"rival": {"agents": ["b"]}}
    further = parse_config(PLAIN | {"policies": policies, "eval": {"tasks": 7}}).policy("rival")
    assert further.section(EvalConfig).tasks == 0


def test_a_path_among_an_extensions_keys_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENS", str(tmp_path))
    config = load_config("gridworld_grpo", ["swarm.token_file=$TOKENS/t"])
    assert config.model_dump()["swarm"]["token_file"] == f"{tmp_path}/t"


def test_the_settings_of_extensions_import_nothing_else_of_ours():
    paths = {row.path.partition(":")[0] for row in rows("settings")}
    for path in paths:
        tree = ast.parse(
            Path(settings.__file__).parent.joinpath(*path.split(".")[2:]).with_suffix(".py").read_text()
        )
        ours = {
            one.module
            for one in tree.body
            if isinstance(one, ast.ImportFrom) and "asyncrl" in str(one.module)
        }
        assert ours <= {"asyncrl.config_sections"}, path


def test_the_core_names_no_section_of_an_extension():
    names = {one.name for one in rows("settings")} - core.Config.model_fields.keys()
    assert {"outer", "swarm", "curriculum", "opponents"} <= names
    for path in (core.__file__, config_sections.__file__, protocol.__file__):
        assert re.findall(rf"(?:config|self|recipe)\.(?:{'|'.join(names)})\b", Path(path).read_text()) == []
