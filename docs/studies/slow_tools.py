"""Environments whose every turn waits for a slow tool: those of slow_tools.toml and same_end.toml."""

from __future__ import annotations

import asyncio
import inspect
import math
import random

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.envs.calculator.env import Calculator
from asyncrl.envs.countdown.env import Countdown
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.envs.office.env import Office

MEDIAN_S = 0.1
SIGMA = 1.0
"""Of the logarithm of the latencies, which are log-normal."""


class Slow(Env):
    """A mixin for environments: each step waits first."""

    async def step(self, action: Action) -> Step:
        """See `Env.step`."""
        await asyncio.sleep(random.lognormvariate(math.log(MEDIAN_S), SIGMA))
        taken = super().step(action)
        return await taken if inspect.isawaitable(taken) else taken


class SlowGridworld(Slow, Gridworld):
    """See `Gridworld`."""


class SlowCalculator(Slow, Calculator):
    """See `Calculator`."""


class SlowCountdown(Slow, Countdown):
    """See `Countdown`."""


class SlowOffice(Slow, Office):
    """See `Office`."""
