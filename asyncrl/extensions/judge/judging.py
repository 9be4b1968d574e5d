"""Rewards of a judge: what it is asked, and what its answer does to an episode.

    score = the judge's one number, or Σ weight of component c x score of c
    reward = judge.weight x (score + the mean of the turns' scores, where turns are scored)

A turn's part is in its own reward, the score in that of the last turn. A turn's part is its score over the number of
turns: more turns do not earn more.

The session is closed and no request waits on the engine while the judge works, so judging overlaps with everything
else. A judge that fails says nothing about the policy: the episode fails with a class of its own, never with reward 0.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from asyncrl.errors import EpisodeError, JudgeError
from asyncrl.extensions.judge.budget import Budget, OwnBudget, RunBudget
from asyncrl.extensions.judge.endpoint import chat_url
from asyncrl.extensions.judge.functions import Functions
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest, Scores
from asyncrl.extensions.judge.settings import KEY, JudgeConfig
from asyncrl.extensions.judge.transcript import whole_messages
from asyncrl.rollout.verdict import Mode, Verdict, all_with_verdict, timed, without_verdict
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.types import Message, Task, Trajectory

COMPONENT = "judge"
"""The component that a judge without named ones gives; those are called "judge_" and their name."""
TURNS = "judge_turns"
"""The component with the mean of the turns' scores."""
CUT = "judge_cut"
"""The component that is 1 where a reward model has read a shorter form of the conversation, else 0."""
TIMING = "judge_s"
"""The key of `Trajectory.timing` for the seconds that a judge takes."""
REWARD_MODEL = "reward_model"
"""The role of the process that serves a reward model in a folder."""
JUDGE_ENGINE = "judge_engine"
"""The role of the engine of a judge that is the policy itself."""


class Judge(Protocol):
    """Scores conversations. Safe to call from many episodes at once."""

    async def score(self, request: JudgeRequest) -> Scores:
        """Return the scores. Raises `JudgeError`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge and how its score enters the reward: `replace` it, or `add` to it, `weight` times the score.

    judge: None where functions alone score. weights: of the components, where there are any. per_turn: whether the
    judge scores turns. Implements `episode.EpisodeEnd`.
    """

    judge: Judge | None
    mode: Mode = "replace"
    weight: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)
    per_turn: bool = False
    functions: Functions = field(default_factory=lambda: Functions({}))

    async def close(self) -> None:
        """See `EpisodeEnd`."""
        self.functions.close()
        if self.judge is not None:
            await self.judge.close()

    async def apply(
        self, played: Sequence[Trajectory], task: Task, messages: list[Message]
    ) -> tuple[Trajectory, ...]:
        """Return an episode's trajectories with their judged rewards; the main agent's is the first.

        The judge reads the main agent's conversation, with all that this agent wrote. Every agent that has taken a turn
        gets the score, since they share the task; the scores of turns are the main agent's alone. Without a score the
        episode fails, and only the main agent's trajectory is returned.
        """
        first, start = played[0], time.monotonic()
        whole, turns = whole_messages(messages, first.conversation)
        request = JudgeRequest(task, tuple(whole), first.reward, turns)
        try:
            if self.per_turn and set(turns.values()) != set(range(len(first.turns))):
                raise JudgeError(
                    f"turns cannot be scored: the transcript has {len(turns)} of {len(first.turns)} turns"
                )
            verdict = self._verdict(*await self._scores(request), len(first.turns))
        except EpisodeError as error:
            return (timed(without_verdict(first, error), TIMING, time.monotonic() - start),)
        first, *others = all_with_verdict(tuple(played), verdict, self.mode)
        return timed(first, TIMING, time.monotonic() - start), *others

    async def _scores(self, request: JudgeRequest) -> tuple[Scores, dict[str, float]]:
        """Return what the judge and what the functions say. Raises `JudgeError`, `NotJudged`."""
        if self.judge is None:
            return Scores({}), await self.functions.score(request)
        scores, given = await asyncio.gather(self.judge.score(request), self.functions.score(request))
        return scores, given

    def _verdict(self, scores: Scores, given: Mapping[str, float], turns: int) -> Verdict:
        if self.weights:
            # Beside functions alone the judge scores turns, and gives its own number for nothing.
            named = {name: value for name, value in scores.numbers.items() if name in self.weights} | dict(
                given
            )
            total = sum(self.weights[name] * value for name, value in named.items())
            components = {f"{COMPONENT}_{name}": value for name, value in named.items()}
        else:
            total = scores.numbers[OVERALL]
            components = {COMPONENT: self.weight * total}
        if scores.cut is not None:
            components[CUT] = float(scores.cut)
        if scores.turns:
            components[TURNS] = sum(scores.turns.values()) / turns
        earned = {turn: self.weight * score / turns for turn, score in scores.turns.items()}
        return Verdict(self.weight * total, components, earned)


def server_of(context: WorkerContext) -> tuple[str, str]:
    """Return the address at which a run's judge is asked, and the bearer key."""
    given = context.config.section(JudgeConfig)
    if given.kind == "folder":
        return f"{context.address(REWARD_MODEL)}/v1/score", context.bearer(REWARD_MODEL)
    if given.kind == "policy":
        return chat_url(context.address(JUDGE_ENGINE)), context.bearer("engine")
    return (chat_url(given.url) if given.chats else given.url.rstrip("/")), os.environ.get(KEY, "")


def budget_of(context: WorkerContext) -> Budget | None:
    """Return what counts for the judge of a run's worker, or of one without a buffer; None where nothing is bounded."""
    config = context.config.section(JudgeConfig)
    if not config.budgeted:
        return None
    return OwnBudget(config) if context.tell is None else RunBudget(context.tell)


def judging(context: WorkerContext) -> Judging:
    """Return the judge of a run. Raises `ConfigError` for a function that is not there."""
    from asyncrl.extensions.judge.client import JudgeClient

    given = context.config.section(JudgeConfig)
    judge = None
    if given.served:
        url, key = server_of(context)
        judge = JudgeClient(given, key, context.config.outage_timeout_s, url, budget_of(context))
    return Judging(
        judge,
        given.mode,
        given.weight,
        {name: one.weight for name, one in given.components.items()},
        given.per_turn,
        Functions(given.functions),
    )
