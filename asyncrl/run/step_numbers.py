"""The numbers of a step. Imports nothing of asyncrl: programs of other environments read this file by its path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a step, but for its step and time."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and name not in ("step", "time")
    }
