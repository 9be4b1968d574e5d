"""What is gathered is sent together, no more often and no more at once than said, and not after the end."""

import asyncio

import pytest

from asyncrl.services.http.batching import RequestBatcher


def test_what_comes_in_one_pass_of_the_loop_is_sent_together_in_calls_of_the_size_allowed():
    async def scenario():
        sent = []

        async def send(items):
            sent.append(items)

        gathered = RequestBatcher(send, max_batch=2)
        for number in range(5):
            gathered.add(number)
        await asyncio.sleep(0.05)
        gathered.add(5)
        await asyncio.sleep(0.05)
        assert await gathered.close() == []
        return sent

    assert asyncio.run(scenario()) == [[0, 1], [2, 3], [4], [5]]


def test_what_comes_before_the_delay_is_over_waits_for_it():
    async def scenario():
        sent = []

        async def send(items):
            sent.append((asyncio.get_running_loop().time(), items))

        gathered = RequestBatcher(send, max_batch=9, delay_s=0.5)
        for number in range(3):
            gathered.add(number)
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)
        return sent

    (first_s, first), (second_s, second) = asyncio.run(scenario())
    assert (first, second) == ([0], [1, 2])
    # The delay began a little before the first call was noted.
    assert second_s - first_s > 0.4


def test_the_end_cancels_what_is_under_way_and_gives_back_what_was_not_sent():
    async def scenario():
        ended = []

        async def send(items):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append(items)
                raise

        gathered = RequestBatcher(send, max_batch=9, delay_s=0.1)
        gathered.add("sent")
        await asyncio.sleep(0.02)
        gathered.add("kept")
        unsent = await gathered.close()
        await asyncio.sleep(0.2)
        return unsent, ended

    assert asyncio.run(scenario()) == (["kept"], [["sent"]])


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_it_may_be_used_again_after_its_end(delay_s):
    async def scenario():
        sent = []

        async def send(items):
            sent.append(items)

        gathered = RequestBatcher(send, max_batch=9, delay_s=delay_s)
        gathered.add(1)
        assert await gathered.close() == [1]
        gathered.add(2)
        await asyncio.sleep(0.2)
        return sent

    assert asyncio.run(scenario()) == [[2]]
