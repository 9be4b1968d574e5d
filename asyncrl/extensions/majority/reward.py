"""The most frequent answer of a group is taken for the right one: reward 1 for whoever gives it, 0 for the others.

    answers 7, 7, 9, none      majority 7       rewards 1, 1, 0, 0
    answers 7, 7, 9, 9         a tie            rewards 0, 0, 0, 0
    answers 7, 8, 9, none      nobody agrees    rewards 0, 0, 0, 0

An episode that was cut off has no answer, and none is a vote. Episodes that failed are not asked and keep their
failure.
Where the environment judges its episodes, though nothing is learned from that, a majority is wrong if it calls none of
those who gave it right.

Source: test-time reinforcement learning (TTRL, arXiv 2504.16084). There the first of several most frequent answers is
taken; here nobody is rewarded in a tie, nor for an answer that nobody else gives. Torch-free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from asyncrl.data.transcript import written_messages
from asyncrl.extensions.majority.settings import MajorityConfig
from asyncrl.rewards.final_answers import final_answers
from asyncrl.rollout.verdict import Mode, Verdict
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.types import EXTRACTED, Status, Task, Trajectory

AGREES = "majority"
"""The component of an episode that agrees, before its weight."""
UNDECIDED = "majority_undecided"
"""That of all episodes of a group: 1 where no answer is the majority's."""
WRONG = "majority_wrong"
"""Likewise: 1 where the majority's answer is wrong; only where that is known."""
LEAST_VOTES = 2


def majority(answers: Sequence[Hashable | None], least_share: float = 0.0) -> Hashable | None:
    """Return the most frequent answer; None for a tie, for one that nobody else gives, and for one with a smaller share
    of all `answers` than `least_share`.

    answers: None for an episode without one.
    """
    counts = Counter(one for one in answers if one is not None).most_common(2)
    if not counts or counts[0][1] < max(LEAST_VOTES, least_share * len(answers)):
        return None
    tied = len(counts) > 1 and counts[1][1] == counts[0][1]
    return None if tied else counts[0][0]


def answer_of(trajectory: Trajectory) -> Hashable | None:
    """Return what an episode's answer counts as: what its environment took for it, else the final answer of the last
    turn (docs/rewards.md). None for an episode without one, or that was cut off."""
    if trajectory.status is not Status.FINISHED:
        return None
    extracted = trajectory.info.get(EXTRACTED)
    read = final_answers()
    return read.ballot(extracted or read.extract(_last_text(trajectory)))


def _last_text(trajectory: Trajectory) -> str:
    messages = written_messages(trajectory.conversation, len(trajectory.turns))
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    return str(said[-1]) if said else ""


@dataclass(frozen=True, slots=True)
class MajorityReward:
    """Implements `group_reward.GroupReward`."""

    mode: Mode
    weight: float = 1.0
    least_share: float = 0.0
    timing: str = ""

    async def score(self, task: Task, played: Sequence[Trajectory]) -> list[Verdict]:
        """See `GroupReward`."""
        answers = [answer_of(one) for one in played]
        chosen = majority(answers, self.least_share)
        agree = [chosen is not None and one == chosen for one in answers]
        shared = {UNDECIDED: float(chosen is None)}
        voters = [one.success for one, agrees in zip(played, agree, strict=True) if agrees]
        if any(success is not None for success in voters):
            shared[WRONG] = float(not any(voters))
        return [Verdict(self.weight * agrees, {AGREES: float(agrees), **shared}) for agrees in agree]

    async def close(self) -> None:
        """See `GroupReward`."""


def configured(context: WorkerContext) -> MajorityReward:
    """Return the reward of a run."""
    given = context.config.section(MajorityConfig)
    assert given.mode != "off"
    return MajorityReward(given.mode, given.weight, given.least_share)
