"""What the core is told by the keys of runs over several machines."""

import pytest

from asyncrl.config import RESTART_S, parse_config
from asyncrl.config_sections import BufferConfig, EngineConfig, TrainConfig
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.settings import BufferMachine, EngineMachines, TrainerMachines

BASE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


def test_an_engine_and_a_trainer_are_on_one_machine_unless_a_key_says_otherwise():
    plain = parse_config(BASE)
    assert (plain.engine.num_machines, plain.train.num_machines) == (1, 1)
    assert (EngineConfig().num_machines, TrainConfig().num_machines) == (1, 1), "without the extension, too"
    spread = parse_config(
        BASE | {"engine": {"nodes": 2, "tensor_parallel": 8}, "train": {"nodes": 3, "ranks": 6}}
    )
    assert (spread.engine.num_machines, spread.engine.ranks_each) == (2, 4)
    assert (spread.train.num_machines, spread.train.ranks_each) == (3, 2)
    assert spread.section(EngineMachines).nodes == 2
    assert spread.section(TrainerMachines).min_nodes == 1


def test_calls_wait_for_a_buffer_on_a_node_until_it_may_be_on_another_one():
    given = BASE | {"run": {"node_timeout_s": 7.0}}
    assert parse_config(given).buffer_outage_s == RESTART_S
    moving = parse_config(given | {"buffer": {"machine": "node"}})
    assert (moving.section(BufferMachine).machine, moving.buffer.may_move) == ("node", True)
    assert moving.buffer_outage_s == RESTART_S + 7.0
    assert not BufferConfig().may_move


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"nodes": 2, "ranks": 3}, "train.ranks must be a multiple of train.nodes=2, got 3"),
        ({"nodes": 2, "ranks": 2, "min_nodes": 3}, "train.min_nodes must be at most train.nodes=2, got 3"),
    ],
)
def test_numbers_of_ranks_and_nodes_that_do_not_fit_are_refused(train, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(BASE | {"train": train})
