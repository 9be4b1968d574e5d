"""A step runs its models over the whole batch only for what its objective reads."""

import pytest

from asyncrl.algo.batch_passes import BatchPasses
from asyncrl.algo.settings import resolve_settings


@pytest.mark.parametrize(
    ("settings", "minibatches", "expected"),
    [
        ({"preset": "grpo"}, 1, False),
        ({"preset": "grpo"}, 2, True),
        ({"preset": "decoupled_ppo"}, 2, True),
        # What the second optimizer step is compared with is the average of past policies.
        ({"preset": "ppo_ewma"}, 2, False),
        ({"preset": "ppo_ewma", "lr_scaling": {"power": 0.5}}, 2, True),
    ],
)
def test_the_policy_is_computed_before_the_step_where_something_reads_it(settings, minibatches, expected):
    assert BatchPasses.of(resolve_settings(settings), minibatches).policy is expected
