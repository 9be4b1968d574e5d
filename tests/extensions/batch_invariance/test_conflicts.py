"""Engines and a trainer that exchange tensors have the same settings of NCCL."""

import pytest

from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.launch.checks.check import check_recipe

COLLECTIVE = "engine.weight_transfer=collective"


def test_batch_invariance_which_sets_nccls_algorithm_in_engines_alone_is_refused_for_a_group_with_the_trainer():
    check_recipe(load_config("gridworld_grpo", [COLLECTIVE]))
    check_recipe(load_config("gridworld_grpo", ["engine.batch_invariant=true"]))
    with pytest.raises(ConfigError, match=r"engine.batch_invariant: .*use 'shared_file' or 'http'"):
        check_recipe(load_config("gridworld_grpo", [COLLECTIVE, "engine.batch_invariant=true"]))


def test_it_is_refused_for_the_engines_of_a_further_policy_too():
    further = ["policies.red.agents=['b']", "policies.red.engine.batch_invariant=true"]
    further.append("policies.red.engine.weight_transfer=collective")
    with pytest.raises(ConfigError, match=r"engine\.batch_invariant: sets NCCL's algorithm"):
        check_recipe(load_config("gridworld_grpo", further))
