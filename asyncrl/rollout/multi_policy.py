"""Episodes of several policies: each plays its agents, and is handed its own trajectories.

Every further policy has a buffer of its own, whose leases are slots: a group that is about to be played takes one from
each, and puts what that policy sampled under it. So each policy's staleness limit, deadlines and exactly-once
accounting hold for itself, and one whose trainer falls behind holds the others back instead of growing stale.

    main buffer --lease--> group --slot of each further policy--> G episodes --+--> main buffer
                                                                              +--> each further policy's buffer
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from asyncrl.chat.conversation import agent_of
from asyncrl.errors import AsyncRLError
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.rollout.episode import EpisodeRunner
from asyncrl.rollout.group import number_branches, run_group
from asyncrl.types import Group, Lease, Status, Trajectory

log = logging.getLogger("asyncrl.rollout")

POLL_S = 5.0
SLOT_TASK = "of_task"
"""Key of `Trajectory.info`: the task a further policy's trajectory was sampled for."""


class SlotSource(Protocol):
    """The part of a further policy's buffer that a worker uses."""

    async def lease(self, worker: str, wait_s: float) -> Lease | None: ...
    async def renew(self, lease_id: str) -> float: ...
    async def release(self, lease_id: str) -> Any: ...
    async def put(self, group: Group) -> Any: ...
    async def status(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Player:
    """A further policy: who it is, where it samples, and where its trajectories go (None: nowhere)."""

    name: str
    agents: frozenset[str]
    generator: Generator
    buffer: SlotSource | None = None


class CastGenerator:
    """Sends each turn to the policy that plays its agent, under that policy's slot."""

    def __init__(
        self, main: Generator, players: Sequence[Player], slots: Mapping[str, Lease | None] | None = None
    ) -> None:
        self.main = main
        self.slots = slots or {}
        self._by_agent = {agent: player for player in players for agent in player.agents}

    async def generate(self, request: GenerateRequest) -> Generated:
        """See `Generator`."""
        player = self._by_agent.get(agent_of(request.agent))
        if player is None:
            return await self.main.generate(request)
        slot = self.slots.get(player.name)
        least, order = (slot.version, slot.order) if slot is not None else (0, 0)
        return await player.generator.generate(replace(request, min_version=least, order=order))


class CastRunner:
    """A `GroupRunner` that plays groups with several policies.

    Returns the main policy's group; those of the others are put before. The trajectories of a policy that takes no
    more, because its training has ended, are left out. Raises `QuarantineError` when a policy's buffer refuses the
    worker.
    """

    def __init__(self, runner: EpisodeRunner, players: Sequence[Player], renew_every_s: float) -> None:
        self.runner = runner
        self.players = players
        self.renew_every_s = renew_every_s

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """See `rollout.group.run_group`."""
        async with contextlib.AsyncExitStack() as stack:
            slots: dict[str, Lease | None] = {}
            for player in self.players:
                slots[player.name] = await stack.enter_async_context(self._slot(player, worker))
            generator = CastGenerator(self.runner.generator, self.players, slots)
            group = await run_group(with_generator(self.runner, generator), lease, worker, episode_timeout_s)
            for player in self.players:
                slot = slots[player.name]
                if slot is not None:
                    await self._put(player, part_of(group, player.agents, slot, worker))
        return without(group, frozenset[str]().union(*(player.agents for player in self.players)))

    @asynccontextmanager
    async def _slot(self, player: Player, worker: str) -> AsyncIterator[Lease | None]:
        """Hold a slot of a policy; None when its plan is closed. What is not put is given back."""
        slot = await self._lease(player, worker)
        if player.buffer is None or slot is None:
            yield None
            return
        keeper = asyncio.ensure_future(self._keep(player, slot))
        try:
            yield slot
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            # After a put this changes nothing.
            with contextlib.suppress(AsyncRLError, TimeoutError, OSError):
                async with asyncio.timeout(POLL_S):
                    await player.buffer.release(slot.id)

    async def _lease(self, player: Player, worker: str) -> Lease | None:
        if player.buffer is None:
            return None
        while True:
            slot = await player.buffer.lease(worker, POLL_S)
            if slot is not None or (await player.buffer.status())["plan_closed"]:
                return slot

    async def _keep(self, player: Player, slot: Lease) -> None:
        """Renew until cancelled. One that is lost is lost when it is put: the episodes of the others go on."""
        assert player.buffer is not None
        while True:
            await asyncio.sleep(self.renew_every_s)
            try:
                await player.buffer.renew(slot.id)
            except (AsyncRLError, TimeoutError, OSError) as error:
                log.warning("slot %s of policy %s not renewed: %s", slot.id, player.name, error)

    async def _put(self, player: Player, group: Group) -> None:
        assert player.buffer is not None
        try:
            await player.buffer.put(group)
        except (AsyncRLError, TimeoutError, OSError) as error:
            # Its slot runs out and is free again; the main policy's group is not to be lost with it.
            log.error("group %s of policy %s refused: %s", group.id, player.name, error)


def with_generator(runner: EpisodeRunner, generator: Generator) -> EpisodeRunner:
    """Return a runner like `runner` that samples elsewhere."""
    other = copy.copy(runner)
    other.generator = generator
    return other


def part_of(group: Group, agents: frozenset[str], slot: Lease, worker: str) -> Group:
    """Return the trajectories of `agents` as the group of their policy's slot.

    An episode in which none of them has spoken counts as one without sampled tokens, and as failed where it failed.
    """
    episodes: list[list[Trajectory]] = []
    for index in range(slot.group_size):
        played = [t for t in group.trajectories if t.rollout == index]
        episodes.append([t for t in played if t.info.get("agent") in agents] or [_silent(played[0])])
    trajectories = tuple(
        replace(t, task_id=slot.task.id, info={**t.info, SLOT_TASK: group.task.id})
        for t in number_branches(episodes)
    )
    return Group(slot.id, slot.task, slot.version, trajectories, worker)


def without(group: Group, agents: frozenset[str]) -> Group:
    """Return the group without the trajectories of `agents`."""
    left: dict[int, list[Trajectory]] = {}
    for trajectory in group.trajectories:
        if trajectory.info.get("agent") not in agents:
            left.setdefault(trajectory.rollout, []).append(trajectory)
    return replace(group, trajectories=tuple(number_branches([left[index] for index in sorted(left)])))


def _silent(first: Trajectory) -> Trajectory:
    """Return what an episode without a turn of a policy's agents gives it; `first` is its main agent's."""
    failed = first.status is Status.FAILED
    return replace(
        first,
        token_ids=np.zeros(0, np.int32),
        loss_mask=np.zeros(0, bool),
        behavior_logprobs=np.zeros(0, np.float32),
        versions=np.zeros(0, np.int32),
        turns=(),
        reward=first.reward if failed else 0.0,
        components={},
        conversation="",
    )
