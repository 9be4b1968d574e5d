"""What an engine that serves adapters is started with."""

import json

import pytest

from asyncrl.config import parse_config
from asyncrl.extensions.league.members import most_members
from asyncrl.extensions.lora.engine import LORA, POLICIES
from asyncrl.services.engine.additions import added_arguments, additions

RUN = {"model": {"path": "m"}, "env": {"name": "team"}, "lora": {"rank": 3, "target_modules": ["q_proj"]}}
HELPERS = {
    "policies": {
        "helpers": {"agents": ["helper"], "lora": {"rank": 9, "target_modules": ["q_proj", "v_proj"]}}
    }
}


def started(publishes=True, **more):
    """Return the arguments by their names, and the variables."""
    added = additions(parse_config(RUN | more), publishes)
    words = " ".join(added_arguments(added)).split("--")[1:]
    named = {name: values for name, *values in (word.split() for word in words)}
    return named, {name: json.loads(text) for one in added for name, text in one.variables.items()}


def test_an_engine_has_room_for_two_versions_of_an_adapter_and_keeps_two_more():
    arguments, variables = started()
    assert arguments == {
        "enable-lora": [], "max-lora-rank": ["8"], "lora-target-modules": ["q_proj"], "max-loras": ["2"],
        "max-cpu-loras": ["4"],
    }  # fmt: skip
    assert variables[LORA]["rank"] == 3
    assert variables[POLICIES] == {}


def test_policies_that_share_an_engine_have_room_for_each_and_the_larger_rank():
    arguments, variables = started(**HELPERS)
    assert arguments["max-lora-rank"] == ["16"]
    assert arguments["lora-target-modules"] == ["q_proj", "v_proj"]
    assert (arguments["max-loras"], arguments["max-cpu-loras"]) == (["4"], ["8"])
    assert variables[POLICIES]["helpers"]["rank"] == 9


def test_members_of_a_population_have_room_besides():
    league = {"opponents": {"choose": "uniform", "size": 3}}
    members = most_members(parse_config(RUN | league))
    arguments, _ = started(**league)
    assert members > 0
    assert arguments["max-loras"] == [str(2 + members)]
    assert arguments["max-cpu-loras"] == [str(4 + members)]


@pytest.mark.parametrize("given", [{"publishes": False}, {"lora": {"rank": 0}}], ids=["evaluation", "rank 0"])
def test_an_engine_without_adapters_that_are_published_is_told_of_none(given):
    assert started(**given) == ({}, {})
