"""Tree credit against numbers worked out by hand."""

import math

import pytest
import torch

from asyncrl.extensions.published.advantage.tree import leaves_below, tree, tree_scores
from tests.algo.factories import advantage_batch

REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
GROUP = torch.zeros(4, dtype=torch.long)
# Row 1 leaves row 0 before turn 1, row 2 leaves row 1 before turn 2; row 3 stands alone.
PARENTS, FORKS = [-1, 0, 1, -1], [0, 1, 2, 0]


def test_a_node_has_the_leaves_that_pass_through_it():
    found = {node: sorted(below) for node, below in leaves_below(PARENTS, FORKS).items()}
    assert found == {
        (0, 0): [0, 1, 2],
        (0, 1): [0],
        (1, 1): [1, 2],
        (1, 2): [1],
        (2, 2): [2],
        (3, 0): [3],
    }


def test_scores_are_global_plus_local_advantage_over_the_root_of_the_leaves():
    root, trunk, below = 0.5, 1 / 3, 0.0
    assert tree_scores(REWARDS, GROUP, PARENTS, FORKS) == pytest.approx(
        {
            (0, 0): 2 * (trunk - root) / math.sqrt(3),
            (0, 1): (1 - root) + (1 - trunk),
            (1, 1): ((below - root) + (below - trunk)) / math.sqrt(2),
            (1, 2): (0 - root) + (0 - below),
            (2, 2): (0 - root) + (0 - below),
            (3, 0): 2 * (1 - root),
        }
    )


def test_each_turn_gets_the_score_of_its_node_and_a_parents_turns_stay_masked_in_the_branch():
    turn_ids = torch.tensor([[0, 1, 2]] * 4)
    mask = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1]], dtype=torch.bool)
    names = [("a", "", 0), ("b", "a", 1), ("c", "b", 2), ("d", "", 0)]
    batch = advantage_batch(
        0, groups=1, size=4, width=3, rewards=REWARDS, mask=mask, turn_ids=turn_ids, branches=names
    )
    scores = tree_scores(REWARDS, GROUP, PARENTS, FORKS)
    expected = [
        [scores[0, 0], scores[0, 1], scores[0, 1]],
        [0.0, scores[1, 1], scores[1, 2]],
        [0.0, 0.0, scores[2, 2]],
        [scores[3, 0]] * 3,
    ]
    torch.testing.assert_close(tree(batch), torch.tensor(expected, dtype=torch.float64))


def test_without_branches_the_score_is_twice_the_centred_reward():
    scores = tree_scores(REWARDS, GROUP, [-1] * 4, [0] * 4)
    assert [scores[row, 0] for row in range(4)] == [1.0, -1.0, -1.0, 1.0]


def test_a_branch_whose_parent_is_missing_stands_alone():
    batch = advantage_batch(0, groups=1, size=2, branches=[("a", "gone", 1), ("b", "", 0)])
    alone = advantage_batch(0, groups=1, size=2, branches=[("a", "", 0), ("b", "", 0)])
    torch.testing.assert_close(tree(batch), tree(alone))
