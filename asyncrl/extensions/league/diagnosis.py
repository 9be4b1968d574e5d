"""What `asyncrl doctor RUN` says of the reward of a policy that plays against a population. Pure."""

from __future__ import annotations

from asyncrl.run import diagnosis
from asyncrl.run.diagnosis import Finding, Observed


def collapse(run: Observed) -> Finding | None:
    """The reward has fallen, and not because the members of a population get stronger."""
    return None if run.values("buffer/opponents_members") else diagnosis.collapse(run)
