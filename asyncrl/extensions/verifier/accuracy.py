"""The balanced accuracy of a group's verdicts, noted on each of them.

    succeeded   yes  yes  yes  no   no      of 3 right episodes 2 are called so, of 2 wrong ones 1:
    agrees       1    1    0    1    0      balanced accuracy (2/3 + 1/2) / 2

The episodes of a group are of one task, so that a verifier which only knows which tasks are hard has a half. A group
of right or of wrong episodes alone has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from asyncrl.env.protocol import agent_of
from asyncrl.extensions.verifier.env import TRUE_NEGATIVE, TRUE_POSITIVE, VERIFIER
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.types import Lease, Trajectory

BALANCED_ACCURACY = "verifier_balanced_accuracy"
"""The component of all verdicts of a group that has both kinds of episodes."""


def balanced_accuracy(positives: Sequence[float], negatives: Sequence[float]) -> float | None:
    """Return the mean of two shares: of right episodes that are called right, and of wrong ones that are called wrong;
    None without one of either.

    positives, negatives: 1 for each verdict on a right, or wrong, episode that agrees, else 0.
    """
    return (fmean(positives) + fmean(negatives)) / 2 if positives and negatives else None


@dataclass(frozen=True, slots=True)
class NotedAccuracy:
    """A `GroupStrategy` that notes the balanced accuracy of a group's verdicts."""

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        episodes = await play(requests)
        verdicts = [one.components for episode in episodes for one in episode if _is_verdict(one)]
        found = balanced_accuracy(
            [one[TRUE_POSITIVE] for one in verdicts if TRUE_POSITIVE in one],
            [one[TRUE_NEGATIVE] for one in verdicts if TRUE_NEGATIVE in one],
        )
        if found is None:
            return episodes
        return [
            tuple(_noted(one, found) if _is_verdict(one) else one for one in episode) for episode in episodes
        ]


def _is_verdict(trajectory: Trajectory) -> bool:
    return agent_of(trajectory.info) == VERIFIER


def _noted(trajectory: Trajectory, accuracy: float) -> Trajectory:
    return replace(trajectory, components={**trajectory.components, BALANCED_ACCURACY: accuracy})


def configured(parts: WorkerParts) -> NotedAccuracy:
    """Return the strategy of a run whose environment is `verified`."""
    return NotedAccuracy()
