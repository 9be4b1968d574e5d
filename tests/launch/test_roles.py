"""What the processes of a run are told of each other."""

from types import SimpleNamespace

import pytest

from asyncrl.config import parse_config
from asyncrl.launch.roles.roles import Roles

LORA = {"lora": {"rank": 4}}
OWN = {"engine": {"count": 1}}


@pytest.mark.parametrize(
    ("own", "addresses", "moved"),
    [
        ({}, ["http://new:1/policies/b"], {"http://old:1/policies/b": "http://new:1/policies/b"}),
        (OWN, [], {}),
    ],
)
def test_a_policy_is_told_where_an_engine_that_serves_it_has_moved_whoever_it_belongs_to(
    process_group, tmp_path, own, addresses, moved
):
    sections = LORA | {"policies": {"b": {"agents": ["b"], **own}}}
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **sections})
    roles = Roles(config, tmp_path, "m", tmp_path / "weights", process_group=process_group)
    roles.add_policy("b", config.policy("b"), tmp_path / "policies" / "b", "m")
    roles.engines = [SimpleNamespace(name="engine-0", url="http://new:1", earlier_urls=["http://old:1"])]
    roles.policies["b"].buffer = SimpleNamespace(name="b-buffer", url="http://buffer:1")
    assert roles.job()["moved"] == {"http://old:1": "http://new:1"}
    job = roles.policies["b"].job()
    assert (job["engines"], job["moved"]) == (addresses, moved)
