"""The candidates that are worth regenerating, worked out by hand."""

import pytest

from asyncrl.algo.curation.contrast import has_contrast, most_contrastive


@pytest.mark.parametrize(
    ("rewards", "size", "chosen"),
    [
        pytest.param([0, 0, 1, 0, 1, 0, 1, 0], 4, [2, 0, 4, 1], id="two of each, earlier ones first"),
        pytest.param([0, 0, 0, 0, 0, 1], 4, [5, 0, 1, 2], id="the only success is among them"),
        pytest.param([1, 1, 1, 0, 1], 3, [0, 3, 1], id="so is the only failure"),
        # Sums of squares about the mean: 0, 0, 10, 9 has 82.75 and 0, 8, 9, 10 has 62.75.
        pytest.param([0, 10, 0, 5, 9, 8], 4, [1, 0, 4, 2], id="the middle is left out"),
        # 10, 0, 0, 0 has 75, and two from each end, 10, 1, 0, 0, have 70.75.
        pytest.param([10, 1, 0, 0, 0, 0], 4, [0, 2, 3, 4], id="one far outside is worth more than halves"),
        pytest.param([-1.0, 0.5], 2, [1, 0], id="as many as are wanted are all taken"),
        pytest.param([0.5], 2, [0], id="and so are fewer"),
        pytest.param([1, 1, 1, 1], 2, [0, 1], id="without a contrast the first"),
        pytest.param([], 2, [], id="none of none"),
    ],
)
def test_the_rewards_that_vary_the_most_are_chosen_best_and_worst_in_turn(rewards, size, chosen):
    assert most_contrastive(rewards, size) == chosen


def test_contrast_is_any_difference():
    assert has_contrast([0.0, 0.0, 0.1])
    assert not has_contrast([0.1, 0.1])
    assert not has_contrast([])
