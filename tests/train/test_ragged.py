"""Rows of unequal lengths lie one after the other, and come out as they went in."""

import numpy as np
import pytest
import torch

from asyncrl.train.step.ragged import Ragged

COUNTS = np.array([2, 0, 3])


@pytest.fixture
def ragged():
    return Ragged(torch.arange(5.0), COUNTS)


def test_rows_are_found_by_their_number(ragged):
    assert [ragged.row(index).tolist() for index in range(3)] == [[0.0, 1.0], [], [2.0, 3.0, 4.0]]
    assert ragged.flat([2, 0]).tolist() == [2.0, 3.0, 4.0, 0.0, 1.0]
    assert ragged.flat([]).tolist() == []


def test_padded_rows_are_as_wide_as_the_longest_chosen_and_come_back(ragged):
    assert ragged.padded([0, 1]).tolist() == [[0.0, 1.0], [0.0, 0.0]]
    whole = ragged.padded([0, 1, 2])
    assert whole.shape == (3, 3)
    assert Ragged.of_padded(whole, COUNTS).values.tolist() == ragged.values.tolist()
    assert ragged.padded([1]).shape == (1, 0)


def test_rows_of_zeros_are_found_with_those_that_are_empty():
    ragged = Ragged(torch.tensor([0.0, -0.0, 0.0, 2.0, 0.0, -1.0]), np.array([2, 0, 3, 1]))
    assert ragged.zero_rows() == [0, 1]
    assert Ragged.full(np.array([1, 0])).zero_rows() == [0, 1]


def test_rows_that_are_put_replace_their_own_values_alone():
    ragged = Ragged.full(COUNTS, torch.nan)
    ragged.put([2], torch.tensor([7.0, 8.0, 9.0]))
    assert ragged.row(2).tolist() == [7.0, 8.0, 9.0]
    assert ragged.row(0).isnan().all()
