"""Which teachers are loaded by the trainer."""

import pytest

from asyncrl.config import parse_config

RECIPE = {"model": {"path": "org/model"}, "env": {"name": "gridworld"}}


@pytest.mark.parametrize(
    ("path", "loaded"),
    [("", False), ("org/teacher", True), ("./self", True), ("self", False), ("http://127.0.0.1:9", False)],
)
def test_a_teacher_is_loaded_unless_it_is_a_server_or_a_name_of_an_extension(path, loaded):
    other = parse_config(RECIPE | {"teacher": {"path": path}}).other_models
    assert {name: one.is_loaded for name, one in other.items()} == {"reference": False, "teacher": loaded}
