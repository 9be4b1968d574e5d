"""Rows as the loss reads them."""

import numpy as np
import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.losses import LOSSES
from asyncrl.extensions.tinker.rows import Row, batches, read_row
from asyncrl.extensions.tinker.wire import Datum, Input


def array(values, rows=None, columns=None, shape=None):
    values = np.asarray(values)
    return Input(
        values.reshape(-1), shape or values.shape, rows and np.asarray(rows), columns and np.asarray(columns)
    )


def read(tokens, loss="cross_entropy", vocab=10, most=4, **inputs):
    return read_row(2, Datum(np.asarray(tokens), inputs), LOSSES[loss], vocab, most)


def test_a_row_scores_one_target_after_each_token():
    row = read([1, 2], target_tokens=array([2, 3]), weights=array([0.0, 1.0]))
    assert (row.positions.tolist(), row.targets.tolist()) == ([0, 1], [2, 3])
    assert row.inputs["weights"].tolist() == [0.0, 1.0]
    assert row.answer(np.asarray([-1.0, -2.0])).tolist() == [-1.0, -2.0]


def test_several_targets_a_token_are_scored_after_the_same_token():
    row = read([1, 2], target_tokens=array([[2, 3], [4, 5]]), weights=array([[1.0, 0.0], [0.5, 0.5]]))
    assert (row.positions.tolist(), row.targets.tolist()) == ([0, 0, 1, 1], [2, 3, 4, 5])
    assert row.answer(np.arange(4.0)).tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_of_a_sparse_target_what_is_not_listed_is_token_0_and_counts_where_it_has_a_weight():
    targets = array([7], rows=[1], columns=[2], shape=(2, 3))
    weights = array([0.5, 0.25], rows=[0, 1], columns=[1, 2], shape=(2, 3))
    row = read([1, 2], target_tokens=targets, weights=weights)
    assert (row.positions.tolist(), row.targets.tolist()) == ([0, 1], [0, 7])
    assert row.inputs["weights"].tolist() == [0.5, 0.25]
    assert row.answer(np.asarray([-1.0, -2.0])).tolist() == [[0.0, -1.0, 0.0], [0.0, 0.0, -2.0]]


ONE = {"target_tokens": array([2]), "weights": array([1.0])}


@pytest.mark.parametrize(
    ("tokens", "inputs", "why"),
    [
        ([], ONE, r"data\[2\]\.model_input: must have 1 to 4 tokens, got 0"),
        ([1] * 5, ONE, "must have 1 to 4 tokens, got 5"),
        ([10], ONE, r"data\[2\]\.model_input: token ids must be from 0 to below 10"),
        ([1], {"weights": array([1.0])}, r"data\[2\]\.target_tokens: must be given"),
        ([1], {"target_tokens": array([2])}, r"data\[2\]\.weights: the loss needs it"),
        ([1], ONE | {"advantages": array([1.0])}, r"data\[2\]\.advantages: the loss does not read it"),
        ([1], ONE | {"target_tokens": array([2, 3])}, r"must be \[1\] or \[1, K\], got \[2\]"),
        ([1], ONE | {"weights": array([1.0, 2.0])}, r"weights: must be \[1\] like target_tokens, got \[2\]"),
        ([1], ONE | {"weights": array([np.inf])}, r"data\[2\]\.weights: must be finite"),
        ([1], ONE | {"target_tokens": array([-1])}, r"target_tokens: token ids must be from 0 to below 10"),
    ],
)
def test_a_row_that_cannot_be_computed_is_refused_by_its_number_and_what_is_wrong(tokens, inputs, why):
    with pytest.raises(InputError, match=why):
        read(tokens, **inputs)


def test_rows_of_like_length_are_computed_together_within_the_limit():
    def row(length):
        return Row(np.zeros(length, int), np.zeros(0), np.zeros(0), {}, np.zeros(0), (length,))

    rows = [row(length) for length in (3, 9, 4, 1, 20)]
    assert list(batches(rows, 10)) == [[4], [1], [2, 0], [3]]
    assert list(batches(rows, 40)) == [[4, 1], [2, 0, 3]]
    assert list(batches([], 10)) == []
