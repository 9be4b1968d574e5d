"""Which methods of a study `--only` names."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.study.command import named_methods
from asyncrl.extensions.study.study_file import Study

STUDY = Study.model_validate(
    {
        "title": "Three methods",
        "recipe": "gridworld_grpo",
        "methods": {"grpo": {}, "dapo": {}, "dapo, twice": {}},
    }
)


@pytest.mark.parametrize(
    ("text", "names"),
    [("", []), ("grpo", ["grpo"]), ("grpo,dapo", ["grpo", "dapo"]), ("dapo, twice", ["dapo, twice"])],
)
def test_methods_are_named_with_commas_between_them_or_one_whose_name_has_one(text, names):
    assert named_methods(text, STUDY) == names


def test_an_unknown_method_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match="no method 'ppo'; allowed: grpo; dapo; dapo, twice"):
        named_methods("grpo,ppo", STUDY)
