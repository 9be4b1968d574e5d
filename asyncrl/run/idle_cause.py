"""Why an engine of a run has nothing to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def idle_cause(engine: Mapping[str, Any], buffer: Mapping[str, Any]) -> str:
    """Return why an engine has nothing to decode, from one sample of the run's activity; "" if it has.

    engine: its `running`, `waiting` and `paused`. buffer: counts of groups by state, and `slots`.
    """
    if engine.get("running", 0) or engine.get("waiting", 0):
        return ""
    if engine.get("paused"):
        return "weights are swapped"
    if buffer.get("in_flight", 0):
        return "episodes wait for their environments"
    if sum(buffer.get(state, 0) for state in ("ready", "taken")) >= buffer.get("slots", 1):
        return "the staleness limit admits no group"
    return "no worker asks" if buffer.get("pending", 0) else "no tasks"
