"""A step runs its models over the whole batch only for what its objective reads."""

import pytest

from asyncrl.algo.objective import build_objective
from asyncrl.train.batch_passes import BatchPasses


@pytest.mark.parametrize(
    ("settings", "minibatches", "expected"),
    [
        ({"preset": "grpo"}, 1, False),
        ({"preset": "grpo"}, 2, True),
        ({"preset": "decoupled_ppo"}, 2, True),
        # What the second optimizer step is compared with is the average of past policies.
        ({"preset": "ppo_ewma"}, 2, False),
        ({"preset": "ppo_ewma", "lr_scaling": {"power": 0.5}}, 2, True),
        ({"preset": "ppo_ewma", "sequential_agents": True}, 2, True),
    ],
)
def test_the_policy_is_computed_before_the_step_where_something_reads_it(settings, minibatches, expected):
    objective = build_objective(settings)
    assert BatchPasses.of(objective, minibatches).policy is expected
