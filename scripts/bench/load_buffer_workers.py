"""The rollout workers of `load_buffer.py`, many in one process: the real loop and client around simulated episodes.

    python scripts/bench/load_buffer_workers.py '{"url": ..., "workers": [names], "out": FILE, ...}'

SIGTERM drains them: groups that run are put, no more are leased. Measurements are in FILE, rewritten every few
seconds, so that a killed process leaves its figures behind.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.jsonfile import write_json
from asyncrl.rollout.worker import RolloutLoop
from asyncrl.services.buffer.client import BufferClient, PutOutcome
from asyncrl.types import FailureClass, Group, Lease, Status, Trajectory, Turn

KEPT_LATENCIES = 20_000
WRITE_EVERY_S = 2.0
START_WITHIN_S = 10.0
NO_SIGNAL_SHARE = 0.05
"""Groups whose episodes all earn the same: dropped."""
FAILURE_SHARE = 0.02
"""Groups whose episodes all failed by the infrastructure: tried again."""
HOPELESS_EVERY = 200
"""One task in this many fails each time, until it is set aside."""
VOCABULARY = 150_000


@dataclass
class Record:
    """Latencies of this process's calls by verb, in seconds (an even sample), and how many there were."""

    calls: Counter[str] = field(default_factory=Counter)
    latency_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, verb: str, latency_s: float) -> None:
        self.calls[verb] += 1
        kept = self.latency_s.setdefault(verb, [])
        if len(kept) < KEPT_LATENCIES:
            kept.append(latency_s)
        elif (place := random.randrange(self.calls[verb])) < KEPT_LATENCIES:
            kept[place] = latency_s

    def write(self, path: Path, loops: list[RolloutLoop]) -> None:
        lost = sum(loop.counters.leases_lost for loop in loops)
        write_json(path, {"calls": self.calls, "latency_s": self.latency_s, "leases_lost": lost})


class TimedBuffer(BufferClient):
    """A client that times its calls. A lease is first requested without waiting, so that waiting for a slot is not
    included."""

    def __init__(self, url: str, record: Record) -> None:
        super().__init__(url)
        self.record = record
        self.newest = 0
        """The newest version seen: what an engine would sample with."""

    async def lease(self, worker: str, wait_s: float) -> Lease | None:
        start = time.perf_counter()
        lease = await super().lease(worker, 0.0)
        self.record.add("lease", time.perf_counter() - start)
        if lease is None:
            lease = await super().lease(worker, wait_s)
        self.newest = max(self.newest, lease.version if lease else 0)
        return lease

    async def renew(self, lease_id: str) -> float:
        start = time.perf_counter()
        expires_in_s = await super().renew(lease_id)
        self.record.add("renew", time.perf_counter() - start)
        return expires_in_s

    async def put(self, group: Group) -> PutOutcome:
        start = time.perf_counter()
        outcome = await super().put(group)
        self.record.add("put", time.perf_counter() - start)
        self.record.calls[f"put: {outcome.outcome}"] += 1
        return outcome


class SimulatedEpisodes:
    """Groups of random tokens after a random time. The tokens of one trajectory come from several versions."""

    def __init__(self, buffer: TimedBuffer, episode_s: float, longest: float, tokens: int, seed: int) -> None:
        self.buffer, self.episode_s, self.longest, self.tokens = buffer, episode_s, longest, tokens
        self.random = random.Random(seed)
        self._ids = np.random.default_rng(seed).integers(0, VOCABULARY, 2 * tokens, dtype=np.int32)

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """Wait for an exponential time of mean `episode_s`, at most `longest` times that."""
        seconds = min(self.random.expovariate(1 / self.episode_s), self.longest * self.episode_s)
        await asyncio.sleep(seconds)
        chance = self.random.random()
        failed = chance < FAILURE_SHARE or lease.task.seed % HOPELESS_EVERY == 0
        even = FAILURE_SHARE <= chance < FAILURE_SHARE + NO_SIGNAL_SHARE
        rewards = [0.0 if even else float(index % 2) for index in range(lease.group_size)]
        episodes = [self._trajectory(lease, i, reward, failed) for i, reward in enumerate(rewards)]
        return Group(lease.id, lease.task, lease.version, tuple(episodes), worker)

    def _trajectory(self, lease: Lease, index: int, reward: float, failed: bool) -> Trajectory:
        length = self.random.randint(self.tokens // 2, 3 * self.tokens // 2)
        prompt = length // 4
        mask = np.arange(length) >= prompt
        versions = np.where(mask, lease.version, -1).astype(np.int32)
        versions[(prompt + length) // 2 :] = max(lease.version, self.buffer.newest)
        return Trajectory(
            task_id=lease.task.id,
            episode_index=index,
            token_ids=self._ids[:length],
            loss_mask=mask,
            behavior_logprobs=np.where(mask, -1.5, 0.0).astype(np.float32),
            versions=versions,
            turns=(Turn(prompt, length, reward),),
            reward=reward,
            status=Status.FAILED if failed else Status.FINISHED,
            failure=FailureClass.INFRASTRUCTURE if failed else None,
            error="the simulated engine is gone" if failed else "",
        )


async def start(loop: RolloutLoop) -> None:
    """Run one worker. Processes of their own, which these stand for, are never ready at the same moment."""
    await asyncio.sleep(random.uniform(0.0, START_WITHIN_S))
    await loop.run()


async def work(plan: dict[str, Any]) -> None:
    """Run the workers until SIGTERM."""
    record, out = Record(), Path(plan["out"])
    buffers = [TimedBuffer(plan["url"], record) for _ in plan["workers"]]
    loops = [
        RolloutLoop(
            name=name,
            buffer=buffer,
            runner=SimulatedEpisodes(buffer, plan["episode_s"], plan["longest"], plan["tokens"], seed),
            groups_in_flight=1,
            lease_s=plan["lease_s"],
            episode_timeout_s=plan["lease_s"],
        )
        for seed, (name, buffer) in enumerate(zip(plan["workers"], buffers, strict=True))
    ]

    def drain() -> None:
        for loop in loops:
            loop.drain()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, drain)
    record.write(out, loops)
    running = asyncio.gather(*(start(loop) for loop in loops))
    while not (await asyncio.wait({running}, timeout=WRITE_EVERY_S))[0]:
        record.write(out, loops)
    record.write(out, loops)
    await running
    await asyncio.gather(*(buffer.close() for buffer in buffers))


if __name__ == "__main__":
    asyncio.run(work(json.loads(sys.argv[1])))
