"""Three environments whose every turn waits for a slow tool: those of slow_tools.toml."""

from __future__ import annotations

import asyncio
import math
import random

from asyncrl.env.protocol import Action, Step
from asyncrl.envs.calculator.env import Calculator
from asyncrl.envs.countdown.env import Countdown
from asyncrl.envs.gridworld.env import Gridworld

MEDIAN_S = 0.1
SIGMA = 1.0
"""Of the logarithm of the latencies, which are log-normal."""


async def _wait() -> None:
    await asyncio.sleep(random.lognormvariate(math.log(MEDIAN_S), SIGMA))


class SlowGridworld(Gridworld):
    """See `Gridworld`."""

    async def step(self, action: Action) -> Step:  # type: ignore[override]
        """See `Gridworld.step`."""
        await _wait()
        return super().step(action)


class SlowCalculator(Calculator):
    """See `Calculator`."""

    async def step(self, action: Action) -> Step:  # type: ignore[override]
        """See `Calculator.step`."""
        await _wait()
        return super().step(action)


class SlowCountdown(Countdown):
    """See `Countdown`."""

    async def step(self, action: Action) -> Step:  # type: ignore[override]
        """See `Countdown.step`."""
        await _wait()
        return super().step(action)
