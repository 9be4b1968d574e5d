"""Groups whose rewards know of length: what the task asks for is put behind it, and what was sampled is counted.

    exact       Think for 512 tokens.            r - alpha |512 - tokens|
    max         Think for maximum 512 tokens.    r clip(alpha (512 - tokens) + delta, 0, 1)
    adaptive    the task as it is                r - weight max(share solved, 1 / K) tokens / longest

r is the reward as it is otherwise, with those of judges and votes. All episodes of a group are asked for the same
number, so that they are compared at one length. Sampled tokens are those of the main agent; an episode that failed has
no length and is none of the K.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from asyncrl.config import Config
from asyncrl.env.protocol import with_text
from asyncrl.errors import EnvironmentFailure
from asyncrl.extensions.length.adaptive import adaptive
from asyncrl.extensions.length.at_most import at_most
from asyncrl.extensions.length.exact import exact
from asyncrl.extensions.length.settings import LengthConfig
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.rollout.verdict import Verdict, with_verdict
from asyncrl.types import Lease, Message, Trajectory

LENGTH = "length"
"""The component of an episode's reward that its length has added, mostly below 0."""
TARGET = "length_target"
"""How many tokens its task asked for."""
ASKS = {"exact": "Think for {} tokens.", "max": "Think for maximum {} tokens."}
"""What is put behind a task, as in the paper."""


class LengthRewards:
    """A `GroupStrategy`."""

    def __init__(self, given: LengthConfig, longest: int, seed: int) -> None:
        """longest: the most tokens of an episode. seed: that of the run, which draws the numbers."""
        self.given = given
        self.longest = longest
        self.seed = seed

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        target = self.target(lease) if self.given.targets else None
        if target is not None:
            text = ASKS[self.given.mode].format(target)
            requests = [replace(one, opening=_asking(one.opening, text)) for one in requests]
        found = list(await play(requests))
        places = [place for place, episode in enumerate(found) if episode[0].failure is None]
        earned = self.rewards([found[place][0] for place in places], target)
        for place, reward in zip(places, earned, strict=True):
            first, *others = found[place]
            asked = {} if target is None else {TARGET: float(target)}
            added = reward - first.reward
            found[place] = (with_verdict(first, Verdict(added, {LENGTH: added, **asked}), "add"), *others)
        return found

    def target(self, lease: Lease) -> int:
        """Return how many tokens a group's task asks for; the same where the lease is played again."""
        drawn = random.Random(f"{self.seed} {lease.task.id} {lease.order}")
        return drawn.randint(self.given.least_target, self.given.most_target)

    def rewards(self, played: Sequence[Trajectory], target: int | None) -> list[float]:
        """Return the rewards of a task's episodes, none of which failed."""
        given = self.given
        if target is None:
            return adaptive(
                [one.reward for one in played],
                [one.reward > 0 if one.success is None else one.success for one in played],
                [one.num_sampled for one in played],
                given.weight,
                self.longest,
            )
        if given.mode == "exact":
            return [exact(one.reward, one.num_sampled, target, given.alpha) for one in played]
        return [at_most(one.reward, one.num_sampled, target, given.alpha, given.delta) for one in played]


def _asking(
    opening: Callable[[list[Message]], list[Message]], text: str
) -> Callable[[list[Message]], list[Message]]:
    """Return what gives the opening messages with a text behind the last of the user's."""

    def asking(messages: list[Message]) -> list[Message]:
        found = list(opening(messages))
        place = max((n for n, message in enumerate(found) if message["role"] == "user"), default=None)
        if place is None:
            raise EnvironmentFailure(
                "the task has no message of the user to ask for a length in (length.mode)"
            )
        found[place] = with_text(found[place], text, "\n\n")
        return found

    return asking


def configured(parts: WorkerParts) -> LengthRewards:
    """Return what a run's groups are played with."""
    config: Config = parts.config
    return LengthRewards(config.section(LengthConfig), config.max_tokens, config.run.seed)
