"""How far candidates foretold the episodes that were played again, worked out by hand."""

from dataclasses import replace

import pytest

from asyncrl.train.explored import explored_metrics
from asyncrl.types import EXPLORED
from tests.buffer.factories import trajectory


def played(index, reward, candidate, same, contrast=True, candidates=8, **info):
    known = {"candidates": candidates, "contrast": contrast, "reward": candidate, "same_tokens": same}
    return replace(trajectory("t", index, reward=reward), info={EXPLORED: known, **info})


def test_agreement_is_over_episodes_with_a_candidate_and_each_counts_once():
    step = [
        played(0, 1.0, 1.0, True),
        played(1, 0.0, 0.0, True),
        played(2, 1.0, 0.0, False),
        played(3, 0.0, None, None, contrast=False, candidates=3),
        # A further agent of the first episode.
        played(4, 9.0, 1.0, False, rollout=0),
        trajectory("u"),
    ]
    # Rewards 1, 0, 1 with candidates 1, 0, 0: covariance 1/9 over variances of 2/9 each.
    assert explored_metrics(step) == pytest.approx(
        {
            "explore/candidates": 27 / 4,
            "explore/contrast": 3 / 4,
            "explore/same_tokens": 2 / 3,
            "explore/same_reward": 2 / 3,
            "explore/reward_correlation": 1 / 2,
        }
    )


def test_what_cannot_be_told_is_left_out():
    assert explored_metrics([trajectory("t")]) == {}
    assert set(explored_metrics([played(0, 0.0, None, None)])) == {"explore/candidates", "explore/contrast"}
    told = explored_metrics([played(0, 1.0, 1.0, True), played(1, 1.0, 0.0, False)])
    assert (told["explore/same_reward"], "explore/reward_correlation" in told) == (0.5, False)
