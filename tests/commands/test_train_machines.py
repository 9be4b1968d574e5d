"""On which machines a run is, by the words of `asyncrl train`."""

import pytest

from asyncrl.cli import parse
from asyncrl.commands.train import _cluster
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.spread import PORT

CONFIG = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})


def machines(*words):
    return _cluster(parse(["train", "recipe", *words]), CONFIG)


def test_nodes_that_are_started_by_hand_are_counted_and_find_the_usual_port():
    found = machines("--on", "nodes", "--nodes", "2")
    assert (found.nodes, found.port, found.comes_by_itself) == (2, PORT, False)
    with pytest.raises(ConfigError, match="--on nodes: say with --nodes how many machines there are"):
        machines("--on", "nodes")


def test_a_run_on_this_machine_waits_for_no_others():
    assert machines() is None
    with pytest.raises(ConfigError, match="--nodes 2: needs --on nodes"):
        machines("--nodes", "2")
