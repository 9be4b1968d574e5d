"""Every row lands in exactly one micro-batch, within the budget, the same number on every rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.data.micro_batches import PADDED_RATIO, Packing, pack_rows, plan_micro_batches
from asyncrl.train.models.prefix_tree import build_tree

lengths = st.lists(st.integers(1, 200), min_size=1, max_size=60)


@pytest.mark.slow
@settings(max_examples=200)
@given(lengths, st.integers(1, 1000), st.integers(1, 5), st.integers(0, 9))
def test_every_row_appears_once_within_the_budget_and_ranks_agree_on_the_count(
    lengths, budget, ranks, groups
):
    packing = pack_rows(some_rows(lengths), [row * 7 % groups for row in lengths]) if groups else None
    plans = plan_micro_batches(lengths, budget, ranks, packing=packing)
    assert len(plans) == ranks
    assert sorted(row for plan in plans for rows in plan for row in rows) == list(range(len(lengths)))
    assert len({len(plan) for plan in plans}) == 1
    for rows in (rows for plan in plans for rows in plan if len(rows) > 1):
        padded = len(rows) * max(lengths[row] for row in rows)
        if packing is None:
            assert padded <= budget
        else:
            assert nodes(some_rows(lengths), rows) <= budget and padded <= PADDED_RATIO * budget


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


def test_what_rows_of_a_group_begin_with_counts_once():
    """Two groups of three rows: 6 shared tokens and 2 of each row's own, 4 shared ones and 1 own."""
    rows = [[1] * 6 + [own] * 2 for own in (2, 3, 4)] + [[5] * 4 + [own] for own in (6, 7, 8)]
    packing = pack_rows([np.array(row) for row in rows], [0, 0, 0, 1, 1, 1])
    assert packing == Packing([8, 8, 8, 5, 5, 5], [0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5], [0, 6, 6, 0, 4, 4])
    lengths = [len(row) for row in rows]
    # 8 + 2 + 2 and 5 + 1 + 1 tokens; with padding it would be 48.
    assert plan_micro_batches(lengths, 19, packing=packing) == [[[0, 1, 2, 3, 4, 5]]]
    assert plan_micro_batches(lengths, 18, packing=packing) == [[[0, 1, 2, 3, 4], [5]]]
    assert plan_micro_batches(lengths, 12, packing=packing) == [[[0, 1, 2], [3, 4, 5]]]
    assert plan_micro_batches(lengths, 9, packing=packing) == [[[0], [1], [2], [3, 4, 5]]]
    # Each of two ranks computes what its own rows share.
    assert plan_micro_batches(lengths, 16, 2, packing=packing) == [[[0, 3, 4]], [[1, 2, 5]]]
    units = [0, 0, 0, 1, 1, 1]
    assert plan_micro_batches(lengths, 19, units=units, packing=packing) == [[[0, 1, 2, 3, 4, 5]]]
    assert plan_micro_batches(lengths, 18, units=units, packing=packing) == [[[0, 1, 2], [3, 4, 5]]]


def test_packed_rows_of_unlike_lengths_take_no_padding_but_the_losss():
    rows = [np.arange(40), *(np.arange(100 + 4 * i, 104 + 4 * i) for i in range(10))]
    packing = pack_rows(rows, range(11))
    lengths = [len(row) for row in rows]
    # The tokens of all are 80, and a row of the loss has 40 places: of those 4 x 80 hold 8.
    assert plan_micro_batches(lengths, 80, packing=packing) == [[[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]]
    assert plan_micro_batches(lengths, 80) == [[[0, 1], list(range(2, 11))]]


def test_the_rows_between_two_say_how_much_those_share():
    packing = pack_rows([np.array(row) for row in ([1, 2, 3], [1, 4, 5], [1, 2, 6], [7, 8, 9])], [0] * 4)
    assert packing == Packing([3] * 4, [0] * 4, [0, 2, 1, 3], [0, 2, 1, 0])
    assert packing.of([1, 0]) == Packing([3, 3], [0, 0], [1, 0], [0, 1])
    assert packing.of([3, 2]) == Packing([3, 3], [0, 0], [1, 0], [0, 0])


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=12), st.data())
def test_the_tokens_counted_are_those_of_the_tree(rows, data):
    keys = [np.array(row) for row in rows]
    packing = pack_rows(keys, [0] * len(rows))
    some = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
    part = packing.of(some)
    assert sum(part.lengths) - sum(part.shared) == nodes(keys, some)


def some_rows(lengths):
    """Rows of these lengths that begin alike."""
    return [np.arange(length) // (1 + row % 3) for row, length in enumerate(lengths)]


def nodes(rows, chosen):
    """The tokens that are computed for some rows."""
    padded = np.zeros((len(chosen), max(len(rows[row]) for row in chosen)), np.int64)
    for place, row in enumerate(chosen):
        padded[place, : len(rows[row])] = rows[row]
    return len(build_tree(padded, np.array([len(rows[row]) for row in chosen])).token_ids)


def test_a_row_longer_than_the_budget_stands_alone():
    assert plan_micro_batches([50, 5, 5], 20) == [[[0], [1, 2]]]


def test_a_rank_without_rows_gets_empty_micro_batches():
    assert plan_micro_batches([30, 30, 30], 30, ranks=2) == [[[0], []], [[1], [2]]]


@pytest.mark.parametrize(("budget", "ranks"), [(0, 1), (1, 0)])
def test_a_budget_or_rank_count_below_one_is_refused(budget, ranks):
    with pytest.raises(ValueError, match="must be at least 1"):
        plan_micro_batches([1], budget, ranks)
