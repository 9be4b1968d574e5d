"""LATR's decisions, on numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.algo.curation.look_ahead import TokenFork, edit_distance, is_alike, token_forks
from asyncrl.types import Status, Trajectory, Turn


def episode(ids, turns, sampled):
    mask = np.array(sampled, bool)
    return Trajectory(
        task_id="t", episode_index=0, token_ids=np.array(ids, np.int32), loss_mask=mask,
        behavior_logprobs=np.zeros(len(ids), np.float32), versions=np.where(mask, 0, -1).astype(np.int32),
        turns=tuple(Turn(start, end, 0.0, "") for start, end in turns), reward=0.0, status=Status.FINISHED,
    )  # fmt: skip


def likeliest(**probabilities):
    return {int(name[1:]): math.log(p) for name, p in probabilities.items()}


# Two tokens of context, a turn of three, one of context, a turn of two.
EPISODE = episode([1, 2, 10, 11, 12, 3, 13, 14], [(2, 5), (6, 8)], [0, 0, 1, 1, 1, 0, 1, 1])
PLACES = (
    {},
    likeliest(t2=0.5, t9=0.5),  # context is no fork
    likeliest(t10=0.45, t20=0.35),
    likeliest(t21=0.40, t11=0.38),  # the parent took the second: the branch takes the first
    likeliest(t12=0.60, t22=0.30),  # the gap is too wide
    likeliest(t3=0.5, t9=0.5),
    likeliest(t23=0.40, t24=0.30, t13=0.05),  # the parent took a third
    likeliest(t14=0.24, t25=0.22),  # neither is likely
)


def test_forks_are_where_two_tokens_were_about_equally_likely_the_most_alike_first():
    first, second = token_forks([EPISODE], [PLACES])
    assert (first.turn, first.place, first.token_id) == (0, 3, 21)
    assert (second.turn, second.place, second.token_id) == (0, 2, 20)
    assert [first.gap, second.gap] == pytest.approx([0.02, 0.10])
    assert [math.exp(first.logprob), math.exp(second.logprob)] == pytest.approx([0.40, 0.35])


def test_failed_episodes_have_no_forks_and_neither_have_places_of_which_nothing_is_known():
    failed = replace(EPISODE, status=Status.FAILED)
    found = token_forks([failed, EPISODE], [PLACES, PLACES[:3]])
    assert found == [TokenFork(1, 0, 2, 20, math.log(0.35), pytest.approx(0.10))]


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("abcd", "bcde", 2)],
)
def test_edit_distance_counts_insertions_deletions_and_replacements(one, other, distance):
    assert edit_distance([*map(ord, one)], [*map(ord, other)]) == distance


def test_a_branch_that_says_nearly_the_same_is_pruned():
    parent = list(range(30))
    # 20 tokens are compared, of which 8 must differ.
    seven, eight = [[-1] * n + list(range(n, 20)) for n in (7, 8)]
    assert is_alike(seven, parent, ends=False)
    assert not is_alike(eight, parent, ends=False)
    # One token inserted and the rest the same is two edits: the last token falls out.
    assert is_alike([-1, *range(19)], parent, ends=False)


def test_a_branch_is_kept_where_it_or_its_parent_ends_within_what_is_compared():
    assert not is_alike([-1, *range(1, 20)], list(range(30)), ends=True)
    assert not is_alike([-1, *range(1, 20)], list(range(20)), ends=False)
    # Cut short by the turn's limit: what there is is compared.
    assert is_alike([-1, 1, 2, 3, 4], list(range(30)), ends=False)
    assert not is_alike([-1, -1, 2, 3, 4], list(range(30)), ends=False)
