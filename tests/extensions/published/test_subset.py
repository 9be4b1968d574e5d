"""The samples with the most varied advantages."""

from __future__ import annotations

import itertools

import numpy as np

from asyncrl.extensions.published import subset


def test_the_variance_subset_is_the_best_of_all():
    drawn = np.random.default_rng(0).normal(size=9)
    best = max(itertools.combinations(range(9), 4), key=lambda rows: drawn[list(rows)].var())
    assert subset.max_variance_subset(drawn, 4) == list(best)
