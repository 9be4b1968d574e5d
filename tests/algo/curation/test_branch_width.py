"""ECHO's branch widths and its pruning, on probabilities worked out by hand."""

import math

import numpy as np
import pytest

from asyncrl.algo.curation.branch_width import (
    branch_width,
    by_confidence,
    confidence_floor,
    grouped,
    is_pruned,
    turn_confidences,
)
from asyncrl.algo.curation.forks import Fork
from asyncrl.types import Status, Trajectory, Turn


def played(*probabilities, status=Status.FINISHED):
    """An episode of one token a turn, with these probabilities; None for a turn that was given."""
    count = len(probabilities)
    return Trajectory(
        task_id="t",
        episode_index=0,
        token_ids=np.arange(count, dtype=np.int32),
        loss_mask=np.array([p is not None for p in probabilities]),
        behavior_logprobs=np.array([math.log(p or 1.0) for p in probabilities], np.float32),
        versions=np.zeros(count, np.int32),
        turns=tuple(Turn(i, i + 1) for i in range(count)),
        reward=0.0,
        status=status,
    )


def test_confidence_is_averaged_over_the_last_four_turns():
    assert grouped([1.0, 0.5, 0.3, 0.2, 0.6]) == pytest.approx([1.0, 0.75, 0.6, 0.5, 0.4])


def test_only_sampled_turns_have_a_confidence():
    assert turn_confidences(played(None, 0.5, 0.25), 3) == pytest.approx([0.5, 0.25])
    assert turn_confidences(played(0.5, 0.25, 0.125), 2) == pytest.approx([0.5, 0.25])


@pytest.mark.parametrize(
    ("uncertain", "confidence", "width"),
    [
        # 1 + 2 (H - 0) / 2 - (C - 0.5) / 0.5
        (2.0, 0.5, 3),
        (2.0, 0.25, 4),
        (2.0, 0.0, 4),
        (1.0, 0.75, 2),
        (0.0, 1.0, 1),
    ],
)
def test_uncertain_turns_after_unlikely_ones_get_more_branches(uncertain, confidence, width):
    assert branch_width(uncertain, 0.0, 2.0, confidence, 0.5) == width


def test_turns_of_equal_uncertainty_get_one_branch_each():
    assert branch_width(0.7, 0.7, 0.7, 0.5, 0.5) == 1


def test_the_most_uncertain_turn_takes_its_whole_width_first():
    # C: 0.8, 0.8, 0.6 and 0.8, 0.8, 0.8: M is 4.6 / 6. At probability 0.2: 1 + 2 - (0.6 - M) / M = 3.2, elsewhere
    # 1 - (0.8 - M) / M = 0.96.
    episodes = [played(0.8, 0.8, 0.2), played(0.8, 0.8, 0.8)]
    assert confidence_floor(episodes) == pytest.approx(4.6 / 6)
    assert by_confidence(episodes, 4) == [Fork(0, 2)] * 3 + [Fork(0, 1)]
    assert by_confidence(episodes, 2) == [Fork(0, 2)] * 2


def test_a_branch_is_pruned_where_confidence_has_fallen_three_turns_in_a_row_below_the_mean():
    falling = [0.9, 0.7, 0.5, 0.3]
    assert is_pruned(falling, 0.7)
    assert not is_pruned(falling, 0.6), "0.6 is its confidence: not below"
    assert not is_pruned([0.9, 0.7, 0.7, 0.7, 0.95], 1.0), "the last turn was more certain"
    assert not is_pruned(falling[:3], 1.0), "it has fallen twice"
    assert not is_pruned(falling, 0.0)


def test_no_branch_leaves_where_it_would_be_pruned():
    # The mean of C is 0.855, and turn 3 of the first episode has 0.7: a trap. Its turns 1 and 2 are not.
    episodes = [played(1.0, 0.8, 0.6, 0.4), *[played(0.9, 0.9, 0.9, 0.9)] * 3]
    forks = by_confidence(episodes, 20)
    assert Fork(0, 3) not in forks
    assert forks[0] == Fork(0, 2)


def test_failed_episodes_have_no_branches():
    assert by_confidence([played(0.9, 0.2, status=Status.FAILED)], 3) == []
    assert confidence_floor([played(0.9, 0.2, status=Status.FAILED)]) == 0.0
