"""The seam by which the episodes of an `env.name` are played otherwise than by the worker."""

import pytest

from asyncrl.config import parse_config
from asyncrl.env.registry import ELSEWHERE, ENVS, load_env
from asyncrl.extensions.table import rows
from asyncrl.rollout.elsewhere import PlayedElsewhere, played_elsewhere

METHODS = [name for name in vars(PlayedElsewhere) if not name.startswith("_")]


def test_an_environments_own_episodes_are_played_by_the_worker():
    assert [name for name in (*ENVS, "my_env:MyEnv") if played_elsewhere(name) is not None] == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_plays_elsewhere_has_tasks_and_answers_all_that_the_core_asks(name):
    assert set(METHODS) == {"players", "check", "check_evaluation", "check_environment"}
    found = played_elsewhere(name)
    assert all(callable(getattr(found, method)) for method in METHODS)
    assert callable(load_env(name).tasks)


@pytest.mark.parametrize("row", rows("players"), ids=lambda row: row.name)
def test_episodes_that_branch_are_compared_as_wholes(row):
    config = parse_config({"model": {"path": "m"}, "env": {"name": row.name}})
    assert config.algo.get("baseline_unit") == ("episodes" if row.branches else None)
