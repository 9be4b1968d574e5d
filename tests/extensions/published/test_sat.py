"""The order quantile of SAT."""

from __future__ import annotations

import pytest
import torch

from asyncrl.extensions.published.loss.sat import order_quantile


@pytest.mark.parametrize(
    ("level", "count", "rank"), [(0.55, 100, 55), (0.9, 10, 9), (0.07, 100, 7), (0.9, 11, 10)]
)
def test_the_rank_of_an_order_quantile_is_exact(level, count, rank):
    assert order_quantile(torch.arange(1, count + 1), level).item() == rank
