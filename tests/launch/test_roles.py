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
    roles.main.engines = [SimpleNamespace(name="engine-0", url="http://new:1", earlier_urls=["http://old:1"])]
    roles.policies["b"].buffer = SimpleNamespace(name="b-buffer", url="http://buffer:1")
    assert roles.job()["moved"] == {"http://old:1": "http://new:1"}
    job = roles.policies["b"].job()
    assert (job["engines"], job["moved"]) == (addresses, moved)


def test_a_run_is_a_list_of_policies_whose_workers_are_told_all_of_them(process_group, tmp_path):
    sections = {"policies": {"b": {"agents": ["b"], **OWN}}}
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **sections})
    roles = Roles(config, tmp_path, "m", tmp_path / "weights", process_group=process_group)
    roles.add_policy("b", config.policy("b"), tmp_path / "policies" / "b", "m")
    assert list(roles.policies) == ["main", "b"]
    assert list(roles.further) == ["b"]
    for number, policy in enumerate(roles.policies.values()):
        policy.buffer = SimpleNamespace(name="buffer", url=f"http://buffer:{number}")
        policy.engines = [SimpleNamespace(name="engine", url=f"http://engine:{number}", earlier_urls=[])]
    assert [engine.url for engine in roles.every_engine] == ["http://engine:0", "http://engine:1"]
    argv = roles._worker_argv("rollout-0")
    told = {word: argv[place + 1] for place, word in enumerate(argv) if word.startswith("--")}
    assert (told["--buffer"], told["--engines"]) == ("http://buffer:0", "http://engine:0")
    assert told["--policy"] == "b=http://buffer:1,http://engine:1"


def test_who_left_a_run_is_told_by_its_address_whichever_role_it_had(process_group, tmp_path):
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})
    roles = Roles(config, tmp_path, "m", tmp_path / "weights", process_group=process_group)
    roles.main.buffer = SimpleNamespace(name="buffer", url="http://buffer:1")
    started = {
        role: SimpleNamespace(name=role, url=f"http://{role}:1", earlier_urls=[])
        for role in ("engine", "env", "rollout")
    }
    for role, process in started.items():
        roles.admit(role, process)
    assert roles.job()["added"] == {"engine": ["http://engine:1"], "env": ["http://env:1"]}
    assert [roles.retire(role) for role in started] == list(started.values())
    job = roles.job()
    assert (job["added"], job["retired"]) == ({"engine": [], "env": []}, ["http://engine:1", "http://env:1"])
    # A new process at an address that had been left.
    roles.admit("env", started["env"])
    assert roles.job()["retired"] == ["http://engine:1"]
