"""Rewards of verifiers that are compared among verdicts on the same kind of episodes.

A policy that is mostly right would teach its verifier to call everything right. So the verdicts of a group on episodes
that succeeded are compared with each other, those on episodes that did not likewise, and both kinds count as much:

    succeeded   yes   yes   yes   no    no         of 5 verdicts 3 and 2 are on one kind
    agrees       1     1     0    1     0          2/3 and 1/2 of these agree: balanced accuracy 7/12
    reward      7/12 + 5/6 * 1/3, twice; 7/12 - 5/6 * 2/3; 7/12 + 5/4 * 1/2; 7/12 - 5/4 * 1/2

So their mean is the balanced accuracy, and so is that of each kind: what a verdict gains is only how much more it
agrees than the others on its kind. Where all verdicts on each kind earn the same, nothing is to be learned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from asyncrl.env.protocol import agent_of
from asyncrl.extensions.verifier.env import AGREES, TRUE_NEGATIVE, TRUE_POSITIVE, VERIFIER
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.rollout.verdict import Verdict, with_verdict
from asyncrl.types import Lease, Trajectory

BALANCED_ACCURACY = "verifier_balanced_accuracy"
"""The component of all verdicts of a group that has both kinds of episodes."""


def kind_means(scores: Sequence[float], kinds: Sequence[str]) -> dict[str, float]:
    """Return the mean score of the verdicts on each kind of episodes.

    scores: from 0 to 1, of each verdict. kinds: of each verdict's episode.
    """
    of_kind: dict[str, list[float]] = defaultdict(list)
    for score, kind in zip(scores, kinds, strict=True):
        of_kind[kind].append(score)
    return {kind: fmean(found) for kind, found in of_kind.items()}


def balanced(scores: Sequence[float], kinds: Sequence[str]) -> list[float]:
    """Return the rewards of a group's verdicts: n verdicts, n_k of them on episodes of kind k, of K kinds.

        mean over kinds of the mean score + n / (K n_k) * (score - mean score on the kind)

    See `kind_means` for the arguments.
    """
    means, counts = kind_means(scores, kinds), Counter(kinds)
    middle = fmean(means.values()) if means else 0.0
    return [
        middle + len(kinds) / (len(means) * counts[kind]) * (score - means[kind])
        for score, kind in zip(scores, kinds, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class ByKind:
    """A `GroupStrategy` that notes the balanced accuracy of a group's verdicts, and compares these by the kind of their
    episodes.

    rewarded: whether the comparison gives their rewards (`balanced`), or each keeps its own.
    """

    rewarded: bool = True

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        episodes = await play(requests)
        given = [one for episode in episodes for one in episode if _kind(one)]
        kinds, scores = [_kind(one) for one in given], [one.reward for one in given]
        agreed = kind_means([one.components[AGREES] for one in given], kinds)
        noted = {BALANCED_ACCURACY: fmean(agreed.values())} if len(agreed) > 1 else {}
        earned = iter(balanced(scores, kinds) if self.rewarded else scores)
        return [
            tuple(
                with_verdict(one, Verdict(next(earned), noted), "replace") if _kind(one) else one
                for one in episode
            )
            for episode in episodes
        ]


def _kind(trajectory: Trajectory) -> str:
    """Return the component that says of which kind the verified episode is; "" for what is no verdict."""
    if agent_of(trajectory.info) != VERIFIER:
        return ""
    return next((name for name in (TRUE_POSITIVE, TRUE_NEGATIVE) if name in trajectory.components), "")


def configured(parts: WorkerParts) -> ByKind:
    """Return the strategy of a run whose environment is `verified`."""
    return ByKind(bool(parts.config.env.config.get("balanced", True)))
