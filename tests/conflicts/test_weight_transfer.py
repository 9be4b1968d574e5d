"""Ways of weights are those of the core and of the extensions, or import paths."""

import pytest

from asyncrl.config import parse_config
from asyncrl.conflicts.weight_transfer import listed, weight_transfers
from asyncrl.errors import ConfigError


def with_transfer(name):
    return parse_config(
        {"model": {"path": "m"}, "env": {"name": "gridworld"}, "engine": {"weight_transfer": name}}
    )


def test_all_are_listed_the_cores_first():
    assert weight_transfers() == ("shared_file", "collective", "http", "nixl")
    assert listed(weight_transfers()) == "'shared_file', 'collective', 'http' or 'nixl'"


@pytest.mark.parametrize("name", [*weight_transfers(), "mine.py:Carrier"])
def test_each_is_taken(name):
    assert with_transfer(name).engine.weight_transfer == name


def test_another_name_is_refused_with_those_that_there_are():
    with pytest.raises(
        ConfigError,
        match=r"engine\.weight_transfer: must be 'shared_file', .* or 'nixl', or an import path .* got 'htp'",
    ):
        with_transfer("htp")
