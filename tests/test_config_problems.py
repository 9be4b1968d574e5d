"""What is told of a wrong configuration: one line for each key, whatever kinds of values the key takes."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError

RIGHT = {"model": {"path": "x"}, "env": {"name": "gridworld"}}


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        ("data", {"reward": 5}, "data.reward: must be a text or a list, got 5"),
        ("data", {"reward": ["math", 3]}, "data.reward.1: must be a text or a table, got 3"),
        (
            "data",
            {"train": ["a", 5]},
            "data.train.1: must be a text or a table of path, config, split, revision, first, weight, got 5",
        ),
        (
            "data",
            {"train": {"path": "a", "wieght": 3}},
            "data.train.wieght: unknown key; did you mean 'weight'? allowed: path, config, split, revision, first, "
            "weight",
        ),
        (
            "data",
            {"train": [{"path": "a"}, {"path": "b", "wieght": 3}]},
            "data.train.1.wieght: unknown key; did you mean 'weight'? allowed: path, config, split, revision, first, "
            "weight",
        ),
        ("data", {"train": [{"weight": 1.0}]}, "data.train.0.path: missing; it must be given"),
        (
            "data",
            {"train": [{"path": "a", "weight": -1.0}]},
            "data.train.0.weight: input should be greater than or equal to 0, got -1.0",
        ),
        ("env", {"name": "x", "services": "some"}, "env.services: must be a number or 'auto', got \"some\""),
        (
            "env",
            {"name": "x", "services": -3},
            "env.services: input should be greater than or equal to 0, got -3",
        ),
        ("train", {"num_stepz": 3}, "train.num_stepz: unknown key; did you mean 'num_steps'? allowed: "),
        ("policies", {"b": {"agent": 1}}, "policies.b.agent: unknown key; did you mean 'agents'? allowed: "),
    ],
)
def test_a_wrong_value_is_told_in_one_line_as_people_write_its_key(section, values, told):
    with pytest.raises(ConfigError) as refused:
        parse_config(RIGHT | {section: values})
    first, *lines = str(refused.value).splitlines()
    assert first == "configuration: 1 problem(s):"
    assert len(lines) == 1
    assert lines[0].startswith(f"  {told}")


def test_a_table_alone_is_a_reward():
    data = {"train": "a.jsonl", "reward": {"name": "math", "weight": 2.0}}
    assert parse_config({"model": {"path": "x"}, "data": data}).data.reward == [
        {"name": "math", "weight": 2.0}
    ]
