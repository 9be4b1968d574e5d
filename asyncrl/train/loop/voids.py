"""What a step's metrics tell of attempts at its episodes that were void: lost to the infrastructure or the environment,
and played again. Torch-free.

A policy that finds out how to make its own episodes void is never trained on those it would lose. Their share then
grows with the version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from asyncrl.types import FailureClass, Group

MUCH = 0.1
"""A larger share of attempts than this is worth a warning."""
LEAST_ATTEMPTS = 16


def void_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of void attempts at episodes of fresh groups, by environment; nothing where none was void."""
    attempts, void = _counted(groups)
    return {f"void/{env}": void[env] / attempts[env] for env in sorted(attempts) if void[env]}


def void_warnings(groups: Sequence[Group]) -> dict[str, str]:
    """Return what to say, by environment, of those in which much was void."""
    attempts, void = _counted(groups)
    return {
        env: f"{void[env]} of {attempts[env]} attempts at episodes of {env!r} were lost to the environment or the "
        "infrastructure and played again. Where this grows with the version, the policy may cause it; the failed "
        "episodes' errors say how (void/* in metrics.jsonl)"
        for env in sorted(attempts)
        if attempts[env] >= LEAST_ATTEMPTS and void[env] > MUCH * attempts[env]
    }


def _counted(groups: Sequence[Group]) -> tuple[Counter[str], Counter[str]]:
    """Return the attempts, and those of them that were void, by environment."""
    attempts: Counter[str] = Counter()
    void: Counter[str] = Counter()
    for group in groups:
        episodes = {t.rollout: t for t in reversed(group.trajectories)}
        for t in episodes.values():
            tried = max(1, int(t.info.get("attempts", 1)))
            attempts[group.task.env] += tried
            void[group.task.env] += tried - 1 + (t.failure not in (None, FailureClass.AGENT))
    return attempts, void
