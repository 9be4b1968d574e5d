"""Episodes of several policies: each plays its own agents and gets its own trajectories.

Every further policy has a buffer of its own, whose leases are slots: before a group is played it takes a slot from each
of them, and afterwards it puts what that policy sampled under its slot. The staleness limit, the deadlines and the
exactly-once accounting thus hold for each policy separately, and a policy whose trainer falls behind slows the others
down instead of growing stale.

    main buffer --lease--> group --slot of each further policy--> G episodes --+--> main buffer
                                                                              +--> each further policy's buffer
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from asyncrl.chat.conversation import agent_of
from asyncrl.errors import AsyncRLError, ConfigError
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.outage_log import OutageLog
from asyncrl.rollout.group import Episode, Play, renumbered
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import FurtherPolicy, WorkerParts
from asyncrl.types import Group, Lease, Status, Trajectory

log = logging.getLogger("asyncrl.rollout")

POLL_S = 5.0
SLOT_TASK = "of_task"
"""Key of `Trajectory.info`: the task a further policy's trajectory was sampled for."""


class MultiPolicyGenerator:
    """Sends each turn to the policy that plays its agent, under the slot of that policy if it has one."""

    def __init__(
        self,
        main: Generator,
        policies: Sequence[FurtherPolicy],
        slots: Mapping[str, Lease | None] | None = None,
    ) -> None:
        self.main = main
        self.slots = slots or {}
        self._by_agent = {agent: policy for policy in policies for agent in policy.agents}

    async def generate(self, request: GenerateRequest) -> Generated:
        """See `Generator`."""
        policy = self._by_agent.get(agent_of(request.agent))
        if policy is None:
            return await self.main.generate(request)
        slot = self.slots.get(policy.name)
        min_version, order = (slot.version, slot.order) if slot is not None else (0, 0)
        return await policy.generator.generate(replace(request, min_version=min_version, order=order))


class Slots:
    """Holds slots of further policies for as long as a group is played, and puts what was sampled under them."""

    def __init__(self, renew_every_s: float) -> None:
        self.renew_every_s = renew_every_s
        self._outages: dict[str, OutageLog] = {}

    @asynccontextmanager
    async def hold(self, policy: FurtherPolicy, worker: str) -> AsyncIterator[Lease | None]:
        """Hold a slot of a policy; None when its plan is closed. What is not put is given back."""
        slot = await self._lease(policy, worker)
        if policy.buffer is None or slot is None:
            yield None
            return
        keeper = asyncio.ensure_future(self._keep(policy, slot))
        try:
            yield slot
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            # After a put this changes nothing.
            with contextlib.suppress(AsyncRLError, TimeoutError, OSError):
                async with asyncio.timeout(POLL_S):
                    await policy.buffer.release(slot.id)

    async def put(self, policy: FurtherPolicy, group: Group) -> None:
        """Put what a policy sampled; a refusal is logged, since the main policy's group must not be lost with it."""
        assert policy.buffer is not None
        try:
            await policy.buffer.put(group)
        except (AsyncRLError, TimeoutError, OSError) as error:
            # Its slot expires and is free again.
            log.error("group %s of policy %s refused: %s", group.id, policy.name, error)

    async def _lease(self, policy: FurtherPolicy, worker: str) -> Lease | None:
        if policy.buffer is None:
            return None
        while True:
            slot = await policy.buffer.lease(worker, POLL_S)
            if slot is not None or (await policy.buffer.status())["plan_closed"]:
                return slot

    async def _keep(self, policy: FurtherPolicy, slot: Lease) -> None:
        """Renew until cancelled. A lost slot is noticed at the put: the episodes still count for the other policies."""
        assert policy.buffer is not None
        failing = False
        outage = self._outages.setdefault(
            policy.name, OutageLog(log, f"slots of policy {policy.name} are not renewed")
        )
        try:
            while True:
                await asyncio.sleep(self.renew_every_s)
                try:
                    await policy.buffer.renew(slot.id)
                    if failing:
                        outage.ended()
                    failing = False
                except (AsyncRLError, TimeoutError, OSError) as error:
                    outage.failed(error, failing)
                    failing = True
        finally:
            if failing:
                outage.ended(worked=False)


class FurtherPolicies:
    """A `GroupStrategy` that has several policies play the agents of a group.

    main: where the main policy samples. renew_every_s: seconds between two renewals of a slot.

    What is left is the main policy's; the groups of the others are put first. A policy whose training has ended still
    samples, and its trajectories are left out. Raises `QuarantineError` when a policy's buffer refuses the worker.
    """

    def __init__(self, main: Generator, policies: Sequence[FurtherPolicy], renew_every_s: float) -> None:
        self.main = main
        self.policies = policies
        self.slots = Slots(renew_every_s)

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        async with contextlib.AsyncExitStack() as stack:
            slots: dict[str, Lease | None] = {}
            for policy in self.policies:
                slots[policy.name] = await stack.enter_async_context(self.slots.hold(policy, worker))
            generator = MultiPolicyGenerator(self.main, self.policies, slots)
            played = await play([replace(one, generator=generator) for one in requests])
            for policy in self.policies:
                slot = slots[policy.name]
                if slot is not None:
                    part = part_of(lease, played, partial(_of_agents, policy.agents), slot, worker)
                    await self.slots.put(policy, part)
        others = frozenset[str]().union(*(policy.agents for policy in self.policies))
        return in_rollouts([[t for t in episode if not _of_agents(others, t)] for episode in played])


def part_of(
    lease: Lease, played: Sequence[Episode], own: Callable[[Trajectory], bool], slot: Lease, worker: str
) -> Group:
    """Return the trajectories of a leased group that are a policy's `own` as the group of its slot.

    An episode in which none of its agents has spoken counts as one without sampled tokens, and as failed where it
    failed.
    """
    episodes = []
    for episode in played[: slot.group_size]:
        spoken = tuple(t for t in episode if own(t))
        episodes.append(spoken or (silent(episode[0]),))
    trajectories = tuple(
        replace(t, task_id=slot.task.id, info={**t.info, SLOT_TASK: lease.task.id})
        for t in renumbered(episodes)
    )
    return Group(slot.id, slot.task, slot.version, trajectories, worker)


def in_rollouts(episodes: Sequence[Sequence[Trajectory]]) -> list[Episode]:
    """Return the episodes of a group of which only some trajectories are left, with `info["rollout"]` on each."""
    return [
        tuple(replace(t, info={**t.info, "rollout": number}) for t in episode)
        for number, episode in enumerate(episodes)
    ]


def _of_agents(agents: frozenset[str], trajectory: Trajectory) -> bool:
    return trajectory.info.get("agent") in agents


def silent(first: Trajectory) -> Trajectory:
    """Return what an episode without a turn of a policy's agents gives it; `first` is its main agent's."""
    failed = first.status is Status.FAILED
    return replace(
        first,
        token_ids=np.zeros(0, np.int32),
        loss_mask=np.zeros(0, bool),
        behavior_logprobs=np.zeros(0, np.float32),
        versions=np.zeros(0, np.int32),
        turns=(),
        engines=(),
        reward=first.reward if failed else 0.0,
        components={},
        conversation="",
        extras={},
    )


def configured(parts: WorkerParts) -> FurtherPolicies | None:
    """Return the further policies of a run; None where none plays an agent of its own.

    Raises `ConfigError` where they cannot play.
    """
    if not parts.policies:
        return None
    if parts.elsewhere:
        raise ConfigError("policies: must be left out where an agent plays the episodes")
    if not any(policy.agents for policy in parts.policies):
        return None
    return FurtherPolicies(parts.engines, parts.policies, parts.renew_every_s)
