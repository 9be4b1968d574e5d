"""Work is given up when the one who does it ends nothing at all, not when it is slow."""

import asyncio

import pytest

from asyncrl.patience import Patience


async def after(seconds, value=None):
    await asyncio.sleep(seconds)
    if isinstance(value, Exception):
        raise value
    return value


def test_work_gives_what_it_returns_or_raises():
    async def scenario():
        patience = Patience(30.0)
        assert await patience.wait(after(0.0, "done")) == "done"
        with pytest.raises(KeyError):
            await patience.wait(after(0.0, KeyError("no")))

    asyncio.run(scenario())


def test_what_nothing_ends_beside_is_given_up_and_cancelled():
    async def scenario():
        work = asyncio.ensure_future(after(30.0))
        with pytest.raises(TimeoutError):
            await Patience(0.05).wait(work)
        return work.cancelled()

    assert asyncio.run(scenario())


def test_work_has_time_as_long_as_other_work_ends():
    async def scenario():
        patience = Patience(0.5)

        async def others():
            for _ in range(6):
                await patience.wait(after(0.2))

        beside = asyncio.ensure_future(others())
        # More than twice the limit.
        found = await patience.wait(after(1.1, "slow"))
        await beside
        return found

    assert asyncio.run(scenario()) == "slow"


def test_what_ended_before_it_began_is_no_reason_to_give_up_sooner():
    async def scenario():
        patience = Patience(0.3)
        await patience.wait(after(0.0))
        await asyncio.sleep(0.4)
        return await patience.wait(after(0.05, "done"))

    assert asyncio.run(scenario()) == "done"


def test_who_is_cancelled_takes_the_work_along():
    async def scenario():
        work = asyncio.ensure_future(after(30.0))
        waiting = asyncio.ensure_future(Patience(30.0).wait(work))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return work.cancelled()

    assert asyncio.run(scenario())
