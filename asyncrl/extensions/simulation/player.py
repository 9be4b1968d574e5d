"""Plays episodes that a workload describes: turns on an engine, tools that take their time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from asyncrl.extensions.simulation.workload import EpisodeShape, Workload
from asyncrl.generation import GenerateRequest, Generator
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.types import Status, Task, Trajectory, Turn

TRAINED = "trained_tokens"
"""Key of `Trajectory.info`: tokens of the episode that the trainer computes."""


class SimulatedPlayer:
    """A `rollout.player.EpisodePlayer`. Its trajectories hold the sampled tokens only."""

    def __init__(
        self,
        generator: Generator,
        workload: Workload,
        group_size: int,
        on_episodes: Callable[[int], None] = lambda _: None,
        progress: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.on_episodes = on_episodes
        """Called with 1 when an episode begins and with -1 when it ends."""
        self.progress = progress
        """The progress of the policy that plays, see `Workload`."""
        self.generator = generator
        self.workload = workload
        self.group_size = group_size
        self._groups: dict[str, Sequence[EpisodeShape]] = {}

    async def play(self, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        """See `EpisodePlayer`."""
        self.on_episodes(1)
        try:
            return await self._play(request)
        finally:
            self.on_episodes(-1)

    async def _play(self, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        shape = self._shape(request.task, request.index)
        request.on_open()
        # Contexts differ by their task, as a router's placement and an engine's prefix cache see them.
        key = zlib.crc32(request.task.id.encode()) & 0x7FFFFFFF
        context, sampled = 0, 0
        turns: list[Turn] = []
        versions: list[np.ndarray] = []
        for number, turn in enumerate(shape.turns):
            context += turn.observed_tokens
            with request.sampling():
                generated = await self.generator.generate(
                    GenerateRequest(
                        id=f"{request.id}-{number}",
                        token_ids=np.full(context, key, np.int32),
                        max_tokens=turn.sampled_tokens,
                        session=request.id,
                        min_version=request.min_version,
                        order=request.order,
                    )
                )
            turns.append(Turn(sampled, sampled + turn.sampled_tokens))
            versions.append(generated.versions)
            context, sampled = context + turn.sampled_tokens, sampled + turn.sampled_tokens
            if turn.tool_s:
                await asyncio.sleep(turn.tool_s)
        trajectory = Trajectory(
            task_id=request.task.id,
            episode_index=request.index,
            token_ids=np.zeros(sampled, np.int32),
            loss_mask=np.ones(sampled, bool),
            behavior_logprobs=np.zeros(sampled, np.float32),
            versions=np.concatenate(versions),
            turns=tuple(turns),
            reward=shape.reward,
            status=Status.FINISHED,
            info={TRAINED: context if shape.trained_tokens is None else shape.trained_tokens},
        )
        return (trajectory,)

    def _shape(self, task: Task, index: int) -> EpisodeShape:
        """Return the shape of one episode; a group's are drawn once."""
        if task.id not in self._groups:
            self._groups[task.id] = self.workload.group(task, self.group_size, self.progress())
        shape = self._groups[task.id][index]
        if index == self.group_size - 1:
            # Later attempts draw it anew.
            del self._groups[task.id]
        return shape
