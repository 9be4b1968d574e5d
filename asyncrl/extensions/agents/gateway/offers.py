"""Episodes that are offered to agents elsewhere: whoever asks for one plays it over HTTP and judges it.

lease -> its episodes wait -> somebody asks -> opened -> calls with its key -> finished with a reward -> trajectories
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from asyncrl.errors import InfrastructureError, InputError
from asyncrl.extensions.agents.gateway.agent_player import AgentPlayer, AgentSettings, EpisodeHost
from asyncrl.extensions.agents.gateway.agents import PLAIN, OpenEpisode, Report
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.rollout.episode import EpisodeEnd
from asyncrl.rollout.player import EpisodeRequest, failed_by
from asyncrl.types import FailureClass, Status, Trajectory

GIVEN_UP = "abandoned: the agent that asked for this episode gave it up"


class Offer(NamedTuple):
    """What an agent is told that has asked for an episode: the task, as a command gets it, and where to play it."""

    task: dict[str, Any]
    episode: OpenEpisode


class Claim:
    """One episode that an agent elsewhere may ask for. Implements `Agent`: that agent plays it."""

    recording = PLAIN

    def __init__(self, held: dict[str, Claim]) -> None:
        """held: those that are being played, by the episode's id, which this one joins."""
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = loop.create_future()
        """Done once somebody has asked for it."""
        self.offer: asyncio.Future[Offer | None] = loop.create_future()
        """What that one is answered; None where the episode could not be opened."""
        self._end: asyncio.Future[Report | str] = loop.create_future()
        self._held = held

    async def run(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        """See `Agent`. Raises `InfrastructureError` for an episode that is not finished: that says nothing of the
        policy."""
        self._held[episode.id] = self
        self.offer.set_result(Offer(task, episode))
        try:
            await asyncio.wait({self._end}, timeout=timeout_s)
        finally:
            del self._held[episode.id]
        if not self._end.done():
            raise InfrastructureError(
                f"abandoned: the agent that asked for this episode did not finish it within {timeout_s:g} s"
            )
        ended = self._end.result()
        if isinstance(ended, str):
            raise InfrastructureError(ended)
        return ended

    def end(self, ended: Report | str) -> None:
        """End it with what was reported, or with why nothing can be said of it."""
        if not self._end.done():
            self._end.set_result(ended)

    def withdraw(self) -> None:
        """Let whoever has asked for it ask again, unless it was opened."""
        if not self.offer.done():
            self.offer.set_result(None)


class Offers:
    """The episodes that wait for somebody to ask, and those that are being played.

    idle_s: how long they wait where nobody asks and none is being played. asking: says how many calls wait for an
    episode. changed: lets those look again.
    """

    def __init__(self, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle_s = idle_s
        self.clock = clock
        self.asking: Callable[[], int] = lambda: 0
        self.changed: Callable[[], None] = lambda: None
        self._waiting: deque[Claim] = deque()
        self._held: dict[str, Claim] = {}
        self._offered: set[str] = set()
        """Tasks whose episodes are or were offered."""
        self._seen = clock()
        """When somebody was last there."""

    @property
    def waiting(self) -> int:
        """Episodes that nobody has asked for yet."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Episodes that are being played."""
        return len(self._held)

    def wanted(self, running: Collection[str]) -> bool:
        """Whether somebody asks for whom there is no episode: a group is leased for those alone.

        running: ids of the tasks that are leased. One whose episodes are not offered yet may be for the one who asks.
        """
        self._offered &= set(running)
        return not self._waiting and self.asking() > 0 and self._offered.issuperset(running)

    def take(self) -> Claim | None:
        """Return the episode that has waited longest, for the one who asks; None where none waits."""
        self._seen = self.clock()
        if not self._waiting:
            return None
        claim = self._waiting.popleft()
        claim.asked.set_result(None)
        return claim

    async def claimed(self, task: str, timeout_s: float) -> Claim:
        """Offer an episode of a task until somebody asks for it. Raises `InfrastructureError` where nobody does."""
        claim = Claim(self._held)
        self._offered.add(task)
        self._waiting.append(claim)
        self.changed()
        until = self.clock() + timeout_s
        try:
            while not claim.asked.done():
                now = self.clock()
                if self._held or self.asking():
                    self._seen = now
                end, why = min(
                    (until, f"within {timeout_s:g} s"), (self._seen + self.idle_s, f"for {self.idle_s:g} s")
                )
                if end <= now:
                    raise InfrastructureError(f"abandoned: nobody asked for this episode {why}")
                await asyncio.wait({claim.asked}, timeout=end - now)
        except BaseException:
            if claim in self._waiting:
                self._waiting.remove(claim)
            claim.withdraw()
            raise
        return claim

    def check(self, episode: Episode, body: dict[str, Any]) -> None:
        """Look at the body of `finish`. Raises `InputError` for an end that says nothing of the policy."""
        if episode.result is not None or body.get("status") == Status.FAILED:
            return
        if not episode.tree.calls:
            raise InputError(
                "finish: no call of this episode was answered; finish it with status 'failed' and the failure, or "
                "delete it"
            )
        if body.get("reward") is None and not episode.counters["rewards"]:
            raise InputError(
                "finish.reward: missing, and none was sent before; an episode that is not judged ends with status "
                "'failed' and the failure"
            )

    def finished(self, episode: Episode, body: dict[str, Any]) -> None:
        """Have an episode that has ended trained, or failed where it ended so."""
        assert episode.result is not None
        self._seen = self.clock()
        claim = self._held.get(episode.id)
        if claim is None:
            return
        error = str(body.get("error") or "the agent said that it failed")
        if body.get("status") != Status.FAILED:
            claim.end(Report(episode.describe()["reward"], must_ask=True))
        elif body.get("failure") == FailureClass.INFRASTRUCTURE:
            claim.end(error)
        else:
            claim.end(Report(problem=error, end="unjudged"))

    def give_up(self, episode: Episode) -> None:
        """End an episode that is not going to be finished."""
        self._seen = self.clock()
        if (claim := self._held.get(episode.id)) is not None:
            claim.end(GIVEN_UP)


class OfferingPlayer:
    """Has agents elsewhere play episodes. Implements `rollout.player.EpisodePlayer`.

    An episode's time starts when somebody asks for it.
    """

    def __init__(
        self, host: EpisodeHost, offers: Offers, settings: AgentSettings, ends: Sequence[EpisodeEnd] = ()
    ) -> None:
        self.host = host
        self.offers = offers
        self.settings = settings
        self.ends = ends

    async def play(self, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        """See `EpisodePlayer`."""
        try:
            claim = await self.offers.claimed(request.task.id, request.timeout_s)
        except InfrastructureError as error:
            return failed_by(request, error)
        try:
            return await AgentPlayer(self.host, claim, self.settings, self.ends).play(request)
        finally:
            claim.withdraw()
