"""Requests hold no more memory together than said, and are let in as they came."""

import asyncio
import contextlib

from asyncrl.services.http.room import Room


def entered(sizes, leaves, most=16, total_bytes=100):
    """Return who was inside after each of `leaves` had left, first before any had; all came in the order of `sizes`."""

    async def scenario():
        room, inside, ends = Room(most, total_bytes), [], [asyncio.Event() for _ in sizes]

        async def request(index):
            async with room.of(sizes[index]):
                inside.append(index)
                await ends[index].wait()
            inside.remove(index)

        requests = [asyncio.create_task(request(index)) for index in range(len(sizes))]
        seen = []
        for index in [None, *leaves]:
            if index is not None:
                ends[index].set()
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append(sorted(inside))
        for one in requests:
            one.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        return seen

    return asyncio.run(scenario())


def test_requests_wait_until_what_others_hold_leaves_room_for_them():
    assert entered([60, 40, 50], leaves=[1, 0]) == [[0, 1], [0], [2]]


def test_a_small_request_does_not_overtake_a_large_one():
    assert entered([60, 50, 10], leaves=[0]) == [[0], [1, 2]]


def test_a_request_that_holds_more_than_all_of_the_room_is_alone():
    assert entered([1, 500, 1], leaves=[0, 1]) == [[0], [1], [2]]


def test_no_more_than_so_many_are_let_in_at_once():
    assert entered([1, 1, 1], leaves=[0], most=2) == [[0, 1], [1, 2]]


def test_a_request_that_is_given_up_leaves_its_place_to_others():
    async def scenario():
        room = Room(16, 100)
        async with room.of(60):
            waiting = asyncio.create_task(room.of(50).__aenter__())
            behind = asyncio.create_task(room.of(40).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            await asyncio.wait_for(behind, 10)

    asyncio.run(scenario())


def test_room_that_becomes_free_as_a_request_is_given_up_goes_to_the_next():
    async def scenario():
        room = Room(16, 100)
        holds = room.of(100)
        await holds.__aenter__()
        given_up = asyncio.create_task(room.of(50).__aenter__())
        behind = asyncio.create_task(room.of(50).__aenter__())
        await asyncio.sleep(0)
        given_up.cancel()
        # The task that was given up has not run since.
        await holds.__aexit__(None, None, None)
        await asyncio.wait_for(behind, 10)
        assert given_up.cancelled()
        await asyncio.wait_for(room.of(50).__aenter__(), 10)

    asyncio.run(scenario())
