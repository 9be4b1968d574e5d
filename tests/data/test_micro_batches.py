"""Every row lands in exactly one micro-batch, within the budget, the same number on every rank."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.data.micro_batches import plan_micro_batches

lengths = st.lists(st.integers(1, 200), min_size=1, max_size=60)


@settings(max_examples=200)
@given(lengths, st.integers(1, 1000), st.integers(1, 5), st.integers(0, 9))
def test_every_row_appears_once_within_the_budget_and_ranks_agree_on_the_count(
    lengths, budget, ranks, groups
):
    prefix_groups = [row * 7 % groups for row in range(len(lengths))] if groups else None
    plans = plan_micro_batches(lengths, budget, ranks, prefix_groups=prefix_groups)
    assert len(plans) == ranks
    assert sorted(row for plan in plans for rows in plan for row in rows) == list(range(len(lengths)))
    assert len({len(plan) for plan in plans}) == 1
    for rows in (rows for plan in plans for rows in plan if len(rows) > 1):
        assert len(rows) * max(lengths[row] for row in rows) <= budget


@settings(max_examples=100)
@given(lengths, st.integers(2, 5))
def test_ranks_differ_by_at_most_one_row_and_the_longest_row(lengths, ranks):
    plans = plan_micro_batches(lengths, 10**6, ranks)
    rows = [[row for part in plan for row in part] for plan in plans]
    counts = [len(part) for part in rows]
    tokens = [sum(lengths[row] for row in part) for part in rows]
    assert max(counts) - min(counts) <= 1
    assert max(tokens) - min(tokens) <= 2 * max(lengths)


def test_rows_of_like_length_share_a_micro_batch():
    assert plan_micro_batches([10, 100, 10, 100], 200) == [[[1, 3], [0, 2]]]


def test_rows_that_begin_alike_are_side_by_side():
    lengths, prefix_groups = [10, 100, 20, 90, 30, 80], [0, 1, 0, 1, 0, 1]
    assert plan_micro_batches(lengths, 300, prefix_groups=prefix_groups) == [[[1, 3, 5], [4, 2, 0]]]
    assert plan_micro_batches(lengths, 200, prefix_groups=prefix_groups) == [[[1, 3], [5, 4], [2, 0]]]


def test_a_micro_batch_is_as_wide_as_its_longest_row_wherever_that_stands():
    assert plan_micro_batches([100, 10, 90, 10], 180, prefix_groups=[0, 0, 1, 1]) == [[[0], [1, 2], [3]]]


def test_a_row_longer_than_the_budget_stands_alone():
    assert plan_micro_batches([50, 5, 5], 20) == [[[0], [1, 2]]]


def test_a_rank_without_rows_gets_empty_micro_batches():
    assert plan_micro_batches([30, 30, 30], 30, ranks=2) == [[[0], []], [[1], [2]]]


@pytest.mark.parametrize(("budget", "ranks"), [(0, 1), (1, 0)])
def test_a_budget_or_rank_count_below_one_is_refused(budget, ranks):
    with pytest.raises(ValueError, match="must be at least 1"):
        plan_micro_batches([1], budget, ranks)
