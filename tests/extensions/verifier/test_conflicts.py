"""What nobody has tried beside a verifier is said before a run starts."""

import pytest

from asyncrl.config import parse_config
from asyncrl.launch.checks.untried import untried

RECIPE = {"model": {"path": "m"}, "env": {"name": "verified", "config": {"tasks": "calculator"}}}


@pytest.mark.parametrize(
    ("given", "pair"),
    [
        ({"judge": {"url": "http://127.0.0.1:1"}}, "judge with env.name='verified'"),
        ({"majority": {"mode": "add"}}, "majority.mode with env.name='verified'"),
        ({"length": {"mode": "adaptive"}}, "length.mode with env.name='verified'"),
    ],
)
def test_other_rewards_have_not_been_tried(given, pair):
    assert f"{pair} has not been tried" in untried(parse_config(RECIPE | given))
    assert untried(parse_config(given | {"model": {"path": "m"}, "env": {"name": "calculator"}})) == []


def test_a_second_policy_has():
    assert untried(parse_config(RECIPE | {"policies": {"verifier": {"agents": ["verifier"]}}})) == []
