"""Early end of groups: what decides it, what it costs and what it saves, against counting all outcomes."""

from dataclasses import replace
from itertools import product

import pytest

from asyncrl.algo.curation.early_end import ends_early, expected_episodes, kept_signal, verdict
from asyncrl.types import FailureClass
from tests.buffer.factories import trajectory


def group(*rewards):
    return [trajectory("t", i, (0,), reward) for i, reward in enumerate(rewards)]


def test_a_group_ends_early_where_its_first_episodes_all_earned_the_same():
    assert ends_early(group(1.0, 1.0), 2)
    assert ends_early(group(0.0, 0.0, 0.0), 3)
    assert not ends_early(group(1.0, 0.0), 2)
    assert not ends_early(group(1.0, 1.0, 1.0), 2), "more than the first have been played"


def test_a_failed_episode_decides_nothing():
    failed = trajectory("t", 1, (0,), 0.0, FailureClass.AGENT)
    assert not ends_early([group(0.0)[0], failed], 2)


def test_equal_rewards_that_were_earned_in_other_turns_are_a_signal():
    one, other = group(1.0, 1.0)
    assert not ends_early([one, replace(other, turns=(replace(other.turns[0], reward=0.5),))], 2)


def test_the_verdict_counts_before_the_reward():
    assert verdict(group(1.0, 1.0)) == "solved"
    assert verdict(group(0.0, 0.0)) == "unsolved"
    assert verdict([replace(t, success=False) for t in group(1.0, 1.0)]) == "unsolved"


def test_two_of_four_at_even_odds_keep_seven_twelfths_of_the_signal_for_three_episodes():
    # 8 of 16 outcomes start with two alike. Of these R (G - R) sums to 2 (0 + 3 + 3 + 4) = 20, of all 16 to 48.
    assert kept_signal(0.5, group_size=4, first=2) == pytest.approx(28 / 48)
    assert expected_episodes(0.5, group_size=4, first=2) == 3.0


@pytest.mark.parametrize(("p", "size", "first"), [(0.1, 8, 4), (0.9, 8, 3), (0.5, 6, 5), (0.3, 5, 2)])
def test_signal_and_cost_are_those_of_all_outcomes(p, size, first):
    total = kept = episodes = 0.0
    for outcome in product((0, 1), repeat=size):
        successes = sum(outcome)
        chance = p**successes * (1 - p) ** (size - successes)
        goes_on = len(set(outcome[:first])) > 1
        total += chance * successes * (size - successes)
        kept += chance * successes * (size - successes) * goes_on
        episodes += chance * (size if goes_on else first)
    assert kept_signal(p, size, first) == pytest.approx(kept / total)
    assert expected_episodes(p, size, first) == pytest.approx(episodes)


def test_near_hopeless_tasks_keep_as_large_a_share_of_the_signal_as_of_the_episodes():
    assert kept_signal(1e-9, 8, 4) == pytest.approx(0.5)
    assert expected_episodes(1e-9, 8, 4) == pytest.approx(4.0)
