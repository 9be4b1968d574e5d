"""Micro-batches cover every row once, stay in the budget, and are as many on every rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.data.micro_batches import plan_micro_batches


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    budget=st.integers(1, 200),
    ranks=st.integers(1, 4),
)
def test_every_row_appears_once_and_padded_size_stays_in_the_budget(lengths, budget, ranks):
    plans = plan_micro_batches(lengths, budget, ranks)
    assert sorted(row for plan in plans for rows in plan for row in rows) == list(range(len(lengths)))
    assert len({len(plan) for plan in plans}) == 1
    for plan in plans:
        for rows in plan:
            widest = max((lengths[row] for row in rows), default=0)
            assert len(rows) <= 1 or len(rows) * widest <= budget


def test_ranks_carry_nearly_equal_tokens():
    lengths = list(range(1, 101))
    plans = plan_micro_batches(lengths, 500, 2)
    loads = [sum(lengths[row] for rows in plan for row in rows) for plan in plans]
    assert abs(loads[0] - loads[1]) <= 1


def test_the_plan_of_a_small_batch_is_the_one_worked_out_by_hand():
    assert plan_micro_batches([3, 5, 2, 4], 10) == [[[1, 3], [0, 2]]]


def test_a_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        plan_micro_batches([1], 0)
