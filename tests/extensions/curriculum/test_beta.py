"""The information of one more rollout."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.extensions.curriculum import beta


def test_information_matches_numerical_integration():
    p = (np.arange(200000) + 0.5) / 200000
    density = p**1.5 * (1 - p) ** 3.0
    density /= density.sum()
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    assert beta.expected_entropy(2.5, 4.0) == pytest.approx(float(density @ entropy), abs=1e-8)
    assert beta.mutual_information(2.5, 4.0, 4) > beta.mutual_information(2.5, 4.0, 1) > 0
