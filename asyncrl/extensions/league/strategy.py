"""Episodes in which a past version of the policy, or an exploiter, plays one side.

a member of the population  -> only the other side's trajectories are kept
an exploiter in training    -> its side's go to its buffer, under a slot; the other side's are kept where the newest
                               version of the policy has it

Only what goes to the exploiter's buffer keeps the states of the other side (`NEXT_STATES`), if it has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asyncrl.extensions.league.members import minimax
from asyncrl.extensions.league.next_states import note_next_states
from asyncrl.extensions.league.opponent import NEWEST, Opponent, opponent_of
from asyncrl.extensions.league.token_extra import NEXT_STATES
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import FurtherPolicy, WorkerParts
from asyncrl.rollout.strategies.policies import Slots, in_rollouts, part_of, silent
from asyncrl.types import MAIN_POLICY, OPPONENT, Lease, Trajectory


class OpponentGenerator:
    """Has the turns of each side sampled by who plays it.

    engines: of the policy. exploiter: where the exploiter samples. slot: under which it does while it is trained.
    """

    def __init__(
        self,
        engines: Generator,
        opponent: Opponent,
        exploiter: Generator | None = None,
        slot: Lease | None = None,
    ) -> None:
        self.engines = engines
        self.opponent = opponent
        self.exploiter = exploiter
        self.slot = slot

    async def generate(self, request: GenerateRequest) -> Generated:
        """See `Generator`."""
        opponent = self.opponent
        if not plays(opponent, request.agent):
            # An engine that has the version at which the group was admitted holds the members, too.
            return await self.engines.generate(replace(request, version=opponent.against))
        if opponent.policy == MAIN_POLICY:
            return await self.engines.generate(replace(request, version=opponent.version))
        assert self.exploiter is not None
        if opponent.version != NEWEST:
            # A copy is held by engines that have the version after it.
            request = replace(request, version=opponent.version, min_version=opponent.version + 1, order=0)
        elif self.slot is None:
            request = replace(request, min_version=0, order=0)
        else:
            request = replace(request, min_version=self.slot.version, order=self.slot.order)
        return await self.exploiter.generate(request)


class Opponents:
    """A `GroupStrategy` that plays groups against whom they were dealt.

    engines: where all versions of the policy sample. exploiter: the policy that is trained against it, if there is
    one. states: whether its trajectories note the states of the other side (`NEXT_STATES`).
    """

    def __init__(
        self,
        engines: Generator,
        exploiter: FurtherPolicy | None = None,
        renew_every_s: float = 1.0,
        states: bool = False,
    ) -> None:
        self.engines = engines
        self.exploiter = exploiter
        self.slots = Slots(renew_every_s)
        self.notes = (note_next_states,) if states else ()

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        opponent = opponent_of(lease)
        if opponent is None:
            return await play(requests)
        if opponent.version == NEWEST:
            return await self._exploited(lease, opponent, worker, requests, play)
        samples = self.exploiter.generator if self.exploiter is not None else None
        generator = OpponentGenerator(self.engines, opponent, samples)
        return learners_part(await play([replace(one, generator=generator) for one in requests]), opponent)

    async def _exploited(
        self, lease: Lease, opponent: Opponent, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """Play a group of the exploiter's, put its part and return the policy's."""
        assert self.exploiter is not None
        async with self.slots.hold(self.exploiter, worker) as slot:
            generator = OpponentGenerator(self.engines, opponent, self.exploiter.generator, slot)
            asked = [replace(one, generator=generator, notes=self.notes) for one in requests]
            played = await play(asked)
            if slot is not None:
                part = part_of(lease, played, lambda t: plays(opponent, _agent(t)), slot, worker)
                met = {} if opponent.against is None else {OPPONENT: opponent.against}
                tagged = tuple(replace(t, info={**t.info, **met}) for t in part.trajectories)
                await self.slots.put(self.exploiter, replace(part, trajectories=tagged))
        return learners_part(played, opponent)


def plays(opponent: Opponent, agent: str) -> bool:
    """True when the opponent plays this agent; "" is the main agent."""
    return opponent.main == (agent == "")


def learners_part(played: Sequence[Episode], opponent: Opponent) -> list[Episode]:
    """Return the episodes of a group without the opponent's trajectories.

    An episode in which the learner has not spoken counts as one without sampled tokens, and as failed where it failed.
    Of a past version that had the other side only the rewards are left.
    """
    kept = []
    for episode in played:
        own = [t for t in episode if not plays(opponent, _agent(t))] or [silent(episode[0])]
        if opponent.against is not None:
            own = [replace(silent(own[0]), reward=own[0].reward)]
        noted = {OPPONENT: opponent.key}
        # The other side's states are for an exploiter alone.
        kept.append([replace(t.without(NEXT_STATES), info={**t.info, **noted}) for t in own])
    return in_rollouts(kept)


def _agent(trajectory: Trajectory) -> str:
    return str(trajectory.info.get("agent", ""))


def configured(parts: WorkerParts) -> Opponents:
    """Return what plays opponents in a run with a population."""
    exploiter = next(iter(parts.policies), None)
    return Opponents(parts.engines, exploiter, parts.renew_every_s, minimax(parts.config))
