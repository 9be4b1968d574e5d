"""Episodes in which a past version of the policy, or an exploiter, plays one side.

a member of the population  -> only the other side's trajectories are kept
an exploiter in training    -> its side's go to its buffer, under a slot; the other side's are kept where the newest
                               version of the policy has it

Only what goes to the exploiter's buffer keeps the states of the other side (`Trajectory.next_states`), if it has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.rollout.group import GroupRunner, number_branches
from asyncrl.rollout.multi_policy import FurtherPolicy, Slots, part_of, silent
from asyncrl.types import NEWEST, OPPONENT, Group, Lease, Opponent, Trajectory


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
        if not opponent.policy:
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


class OpponentRunner:
    """A `GroupRunner` that plays groups against whom they were dealt.

    make_runner: returns a runner of groups that samples from the given generator. engines: where all versions of the
    policy sample. exploiter: the policy that is trained against it, if there is one.
    """

    def __init__(
        self,
        make_runner: Callable[[Generator], GroupRunner],
        engines: Generator,
        exploiter: FurtherPolicy | None = None,
        renew_every_s: float = 1.0,
    ) -> None:
        self.make_runner = make_runner
        self.engines = engines
        self.exploiter = exploiter
        self.slots = Slots(renew_every_s)
        self.alone = make_runner(engines)

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """See `GroupRunner`."""
        group = await self._run_group(lease, worker, episode_timeout_s)
        if all(t.next_states is None for t in group.trajectories):
            return group
        return replace(group, trajectories=tuple(replace(t, next_states=None) for t in group.trajectories))

    async def _run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        opponent = lease.opponent
        if opponent is None:
            return await self.alone.run_group(lease, worker, episode_timeout_s)
        if opponent.version == NEWEST:
            return await self._exploited(lease, opponent, worker, episode_timeout_s)
        generator = OpponentGenerator(self.engines, opponent, self._exploiter_samples)
        group = await self.make_runner(generator).run_group(lease, worker, episode_timeout_s)
        return learners_part(group, opponent)

    @property
    def _exploiter_samples(self) -> Generator | None:
        return self.exploiter.generator if self.exploiter is not None else None

    async def _exploited(
        self, lease: Lease, opponent: Opponent, worker: str, episode_timeout_s: float
    ) -> Group:
        """Play a group of the exploiter's, put its part and return the policy's."""
        assert self.exploiter is not None
        async with self.slots.hold(self.exploiter, worker) as slot:
            generator = OpponentGenerator(self.engines, opponent, self.exploiter.generator, slot)
            group = await self.make_runner(generator).run_group(lease, worker, episode_timeout_s)
            if slot is not None:
                part = part_of(group, lambda t: plays(opponent, _agent(t)), slot, worker)
                met = {} if opponent.against is None else {OPPONENT: opponent.against}
                tagged = tuple(replace(t, info={**t.info, **met}) for t in part.trajectories)
                await self.slots.put(self.exploiter, replace(part, trajectories=tagged))
        return learners_part(group, opponent)


def plays(opponent: Opponent, agent: str) -> bool:
    """True when the opponent plays this agent; "" is the main agent."""
    return opponent.main == (agent == "")


def learners_part(group: Group, opponent: Opponent) -> Group:
    """Return the group without the opponent's trajectories.

    An episode in which the learner has not spoken counts as one without sampled tokens, and as failed where it failed.
    Of a past version that had the other side only the rewards are left.
    """
    episodes: dict[int, list[Trajectory]] = {}
    for trajectory in group.trajectories:
        episodes.setdefault(trajectory.rollout, []).append(trajectory)
    kept = []
    for index in sorted(episodes):
        played = episodes[index]
        own = [t for t in played if not plays(opponent, _agent(t))] or [silent(played[0])]
        if opponent.against is not None:
            own = [replace(silent(own[0]), reward=own[0].reward)]
        kept.append([replace(t, info={**t.info, OPPONENT: opponent.key}) for t in own])
    return replace(group, trajectories=tuple(number_branches(kept)))


def _agent(trajectory: Trajectory) -> str:
    return str(trajectory.info.get("agent", ""))
