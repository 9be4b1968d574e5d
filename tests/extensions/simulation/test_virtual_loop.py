"""Time on the virtual clock passes when everything waits, and only then."""

import asyncio
import time

import pytest

from asyncrl.clock import now_s
from asyncrl.errors import DeadlineError
from asyncrl.extensions.simulation.virtual_loop import run_virtually


def test_a_day_passes_at_once_and_in_order():
    order = []

    async def wait(name, seconds):
        await asyncio.sleep(seconds)
        order.append((name, now_s()))

    async def day():
        await asyncio.gather(wait("evening", 64_800), wait("morning", 21_600))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(21_600):
                await asyncio.get_running_loop().create_future()
        return now_s()

    assert run_virtually(day()) == 86_400
    assert order == [("morning", 21_600), ("evening", 64_800)]


def test_a_wait_that_nothing_ends_is_an_error():
    async def forever():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlineError, match="no timer"):
        run_virtually(forever())


def test_outside_of_a_simulation_the_clock_is_the_systems():
    before = time.monotonic()

    async def read():
        return now_s()

    assert before <= now_s() <= asyncio.run(read()) <= time.monotonic()
