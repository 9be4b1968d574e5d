"""Places for sessions: order, limits, keeping one's turn, giving up."""

import asyncio

import pytest

from asyncrl.env.hosting.places import FORGET_S, NoPlace, Places


def run(coroutine):
    return asyncio.run(coroutine)


def begin(places, name, ticket="", wait_s=30.0):
    return asyncio.ensure_future(places.take((name,), ticket, wait_s))


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_places_go_to_who_waits_longest_among_those_for_whom_there_is_room():
    async def scenario():
        places = Places(2, {"web": 1})
        await places.take(("web",))
        await places.take(("grid",))
        web, grid, more = begin(places, "web"), begin(places, "grid"), begin(places, "grid")
        await settle()
        places.give_back(("grid",))
        await settle()
        assert (web.done(), grid.done(), more.done()) == (False, True, False)
        places.give_back(("web",))
        await settle()
        assert (web.done(), more.done()) == (True, False)
        assert (places.total, dict(places.held)) == (2, {"web": 1, "grid": 1})
        more.cancel()

    run(scenario())


def test_an_environment_inside_another_counts_as_both_and_once_in_all():
    async def scenario():
        places = Places(3, {"mix": 2, "web": 1})
        await places.take(("mix", "web"))
        with pytest.raises(NoPlace, match="all 1 sessions of environment 'web' are in use"):
            await places.take(("web",))
        await places.take(("mix", "grid"))
        with pytest.raises(NoPlace, match="all 2 sessions of environment 'mix' are in use"):
            await places.take(("mix", "grid"))
        await places.take(("grid",))
        with pytest.raises(NoPlace, match="all 3 environment sessions are in use"):
            await places.take(("grid",))
        for names in (("mix", "web"), ("mix", "grid"), ("grid",)):
            places.give_back(names)
        assert (places.total, dict(places.held)) == (0, {})

    run(scenario())


def test_who_asks_again_has_kept_its_turn_and_who_does_not_come_back_loses_it():
    async def scenario():
        now = 0.0
        places = Places(1, {}, clock=lambda: now)
        await places.take(("grid",))
        with pytest.raises(NoPlace):
            await places.take(("grid",), "first", 0.01)
        second = begin(places, "grid", "second")
        await settle()
        again = begin(places, "grid", "first")
        await settle()
        places.give_back(("grid",))
        await settle()
        assert (again.done(), second.done()) == (True, False)
        with pytest.raises(NoPlace):
            await places.take(("grid",), "late")
        second.cancel()
        now = FORGET_S + 1
        third = begin(places, "grid", "third")
        await settle()
        late = begin(places, "grid", "late")
        await settle()
        places.give_back(("grid",))
        await settle()
        assert (third.done(), late.done()) == (True, False)
        late.cancel()

    run(scenario())


def test_a_refusal_says_since_when_nothing_moves():
    async def scenario():
        now = 100.0
        places = Places(2, {"web": 1}, clock=lambda: now)
        await places.take(("web",))
        now = 130.0
        await places.take(("grid",))
        places.give_back(("grid",))
        with pytest.raises(NoPlace) as caught:
            await places.take(("web",))
        assert caught.value.stuck_s == 30.0
        await places.take(("grid",))
        now = 131.0
        with pytest.raises(NoPlace) as caught:
            await places.take(("grid",))
        assert caught.value.stuck_s == 1.0

    run(scenario())


def test_a_place_granted_to_one_who_has_just_gone_is_free_again():
    async def scenario():
        places = Places(1, {})
        await places.take(("grid",))
        gone = begin(places, "grid")
        await settle()
        gone.cancel()
        places.give_back(("grid",))
        await settle()
        assert gone.cancelled()
        assert places.total == 0
        await places.take(("grid",))

    run(scenario())
