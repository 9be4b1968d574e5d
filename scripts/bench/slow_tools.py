"""Gridworld whose every move waits for a tool with heavy-tailed latency: the environment of `bench_async.py`."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task

_draws: dict[int, random.Random] = {}
"""One sequence of latencies for each seed in this process, shared by its sessions."""


class SlowGridworld(Gridworld):
    """Latencies are log-normal: `latency_median_s`, `latency_sigma` of the logarithm, drawn from `latency_seed`."""

    in_worker: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        latency_median_s: float = 0.1,
        latency_sigma: float = 1.2,
        latency_seed: int = 0,
        **config: Any,
    ) -> None:
        super().__init__(task, **config)
        self.mean, self.sigma = math.log(latency_median_s), latency_sigma
        self.draws = _draws.setdefault(latency_seed, random.Random(latency_seed))

    async def step(self, action: Action) -> Step:  # type: ignore[override]
        await asyncio.sleep(self.draws.lognormvariate(self.mean, self.sigma))
        return super().step(action)
