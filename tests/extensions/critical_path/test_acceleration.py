"""The reward for a short critical path, by hand."""

import pytest

from asyncrl.extensions.critical_path.acceleration import acceleration_reward
from asyncrl.extensions.critical_path.lengths import Lengths


@pytest.mark.parametrize(
    ("total", "critical", "expected"),
    [
        (100, 100, 0.0),
        (110, 100, 0.05),  # 0.5 x 0.1
        (120, 100, 0.1),
        (300, 100, 0.1),  # no more than 0.5 x 0.2
        (0, 0, 0.0),
    ],
)
def test_a_success_earns_by_how_much_its_tokens_exceed_its_critical_path(total, critical, expected):
    found = acceleration_reward(Lengths(total, critical), True, factor=0.5, most=0.2)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("success", [False, None])
def test_what_is_no_success_earns_nothing(success):
    assert acceleration_reward(Lengths(300, 100), success, 0.5, 0.2) == 0.0
