"""A trainer that only takes time, under each of the schedules (docs/schedules.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from asyncrl.buffer.counts import settled
from asyncrl.config import Config
from asyncrl.errors import DeadlineError
from asyncrl.extensions.simulation.buffer import GroupSize, SimulatedBuffer
from asyncrl.extensions.simulation.costs import TrainerCosts

SETTLE_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Step:
    """One training step."""

    version: int
    """That it made."""
    ended_s: float
    wait_s: float
    train_s: float
    publish_s: float
    groups: int
    sampled_tokens: int
    trained_tokens: int
    staleness_mean: float
    """Over sampled tokens."""
    staleness_max: int


class SimulatedTrainer:
    """Takes batches, computes, publishes, commits."""

    def __init__(
        self,
        config: Config,
        costs: TrainerCosts,
        buffer: SimulatedBuffer,
        publish: Callable[[int], Awaitable[None]],
        on_busy: Callable[[bool], Awaitable[None]],
    ) -> None:
        self.config = config
        self.costs = costs
        self.buffer = buffer
        self.publish = publish
        self.on_busy = on_busy
        """Called before and after the trainer computes."""
        self.steps: list[Step] = []
        self.version = 0
        self._publishing: asyncio.Task[None] | None = None
        """Brings the newest version to the engines."""

    async def run(self, num_steps: int) -> None:
        """Train to version `num_steps`, or to the end of the plan. Raises `DeadlineError` where no batch comes."""
        try:
            while self.version < num_steps and await self._step():
                pass
            await self._published()
        finally:
            if self._publishing is not None:
                self._publishing.cancel()

    def restart(self) -> None:
        """Go back to the newest checkpoint, as a trainer does that has died."""
        every, committed = self.config.train.checkpoint_every, self.buffer.ledger.version
        self.version = committed // every * every if every else 0
        self.buffer.rollback_to(self.version)
        self.steps = [step for step in self.steps if step.version <= self.version]

    async def _step(self) -> bool:
        loop = asyncio.get_running_loop()
        began = loop.time()
        streamed_s = await self._stream() if self.config.train.schedule == "periodic" else 0.0
        batch = await self.buffer.take(self.version, self.config.buffer.wait_timeout_s)
        if batch is None:
            raise DeadlineError(
                f"step {self.version}: no batch within buffer.wait_timeout_s={self.config.buffer.wait_timeout_s:g}"
            )
        if not batch:
            return False
        taken = loop.time()
        computed_s = self.costs.step_s if streamed_s else self._train_s(batch) + self.costs.step_s
        await self._compute(computed_s)
        trained = loop.time()
        if self.config.train.schedule == "one_step_off":
            await self._settle()
        settled = loop.time()
        await self._published()
        self._publishing = asyncio.ensure_future(self._publish(self.version + 1))
        if not self.config.publishes_in_background:
            await self._published()
        self._record(batch, taken - began - streamed_s + settled - trained, streamed_s + computed_s, settled)
        self.version += 1
        return True

    async def _publish(self, version: int) -> None:
        await asyncio.sleep(self.costs.publish_s)
        await self.publish(version)
        self.buffer.commit(version)

    async def _published(self) -> None:
        """Wait until the version on its way is committed."""
        if self._publishing is not None:
            await self._publishing
            self._publishing = None

    def _train_s(self, groups: Sequence[GroupSize]) -> float:
        return sum(group.trained_tokens for group in groups) * self.costs.token_s

    async def _compute(self, seconds: float) -> None:
        await self.on_busy(True)
        await asyncio.sleep(seconds)
        await self.on_busy(False)

    async def _stream(self) -> float:
        """Compute on groups as they become ready, until the batch is complete; return the seconds that took."""
        seen: list[str] = []
        computed_s = 0.0
        while True:
            found = await self.buffer.peek(self.version, seen, self.config.buffer.wait_timeout_s)
            if found is None:
                return computed_s
            groups, complete = found
            if groups:
                await self._compute(self._train_s(groups))
                computed_s += self._train_s(groups)
            if complete:
                return computed_s

    async def _settle(self) -> None:
        """Wait until nothing is in flight and nothing more can be admitted, as the real schedule does."""
        while not settled(self.buffer.ledger.stats()):
            await asyncio.sleep(SETTLE_EVERY_S)

    def _record(
        self, batch: Sequence[GroupSize], wait_s: float, train_s: float, published_from_s: float
    ) -> None:
        now = asyncio.get_running_loop().time()
        sampled = sum(group.sampled_tokens for group in batch)
        age = self.version * sampled - sum(group.version_sum for group in batch)
        self.steps.append(
            Step(
                version=self.version + 1,
                ended_s=now,
                wait_s=wait_s,
                train_s=train_s,
                publish_s=now - published_from_s,
                groups=len(batch),
                sampled_tokens=sampled,
                trained_tokens=sum(group.trained_tokens for group in batch),
                staleness_mean=age / max(1, sampled),
                staleness_max=max(self.version - group.oldest for group in batch),
            )
        )
