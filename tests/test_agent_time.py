"""What an agent starts within a step gets a share of its time, whatever it starts and however often."""

import asyncio

import pytest

from asyncrl import agent_time
from asyncrl.agent_time import SHARE, granted, needed_s, of_step, own, part


def run(coroutine):
    return asyncio.run(coroutine)


async def used(wanted_s, used_s=None):
    """Ask for time, use `used_s` of it (None for all), and return how much was granted."""
    async with granted(wanted_s) as grant:
        grant.used_s = grant.limit_s if used_s is None else used_s
        await asyncio.sleep(0)
        return grant.limit_s, grant.cut, grant.enough


def test_outside_of_a_step_all_is_granted():
    assert run(used(1000.0)) == (1000.0, False, True)


def test_programs_one_after_the_other_get_what_is_left():
    async def act():
        with of_step(10.0):
            return [await used(4.0) for _ in range(3)]

    assert run(act()) == [
        (4.0, False, True),
        (pytest.approx(10 * SHARE - 4.0), True, True),
        (pytest.approx(0.0), True, False),
    ]


def test_what_was_not_used_is_there_for_the_next():
    async def act():
        with of_step(10.0):
            return [await used(5.0, 0.5) for _ in range(6)]

    granted_s = [limit_s for limit_s, _, _ in run(act())]
    assert granted_s == pytest.approx([5.0, 5.0, 5.0, 5.0, 4.5, 4.0])


def test_many_at_once_wait_for_each_other_and_never_run_for_longer_than_there_is():
    async def act(used_s, count):
        with of_step(10.0):
            return await asyncio.gather(*(used(2.0, used_s) for _ in range(count)))

    endless = run(act(None, 40))
    assert sum(limit_s for limit_s, _, _ in endless) == pytest.approx(10 * SHARE)
    assert [enough for _, _, enough in endless].count(True) == 4
    assert all(found == (2.0, False, True) for found in run(act(0.01, 40))), "short ones all run"


def test_a_step_is_divided_between_what_the_agent_runs_and_what_judges_it():
    async def act():
        with of_step(10.0):
            with part(0.5):
                first = [await used(100.0), await used(1.0)]
            with part(0.5):
                return [*first, await used(1.0)]

    first, none, judged = run(act())
    assert first == (pytest.approx(5 * SHARE), True, True)
    assert none[2] is False
    assert judged == (1.0, False, True)


def test_what_is_the_environments_own_takes_nothing_of_it():
    async def act():
        with of_step(10.0):
            with own():
                mine = await used(60.0)
            return mine, await used(1.0)

    assert run(act()) == ((60.0, False, True), (1.0, False, True))


def test_two_steps_at_once_do_not_share_their_time():
    async def step():
        with of_step(10.0):
            return await used(5.0)

    async def act():
        return await asyncio.gather(*(step() for _ in range(5)))

    assert run(act()) == [(5.0, False, True)] * 5


def test_time_counts_by_the_clock_where_nothing_else_is_known(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(agent_time.time, "monotonic", lambda: now[0])

    async def act():
        with of_step(10.0):
            async with granted(5.0):
                now[0] += 2.0
            return await used(100.0)

    assert asyncio.new_event_loop().run_until_complete(act())[0] == pytest.approx(10 * SHARE - 2.0)


def test_a_limit_fits_a_step_from_its_share_on():
    least = needed_s(7.0, 0.5)

    async def act(limit_s):
        with of_step(limit_s), part(0.5):
            return await used(7.0)

    assert run(act(least + 1e-6))[1] is False
    assert run(act(least - 1e-3))[1] is True
