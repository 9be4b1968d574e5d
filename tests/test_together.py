"""Calls made together end together."""

import asyncio

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.envs.tools import answer_calls, schema
from asyncrl.extensions.env_adapters.calls import answer_calls as answer_adapters_calls
from asyncrl.together import to_their_ends, together


async def slowly(name, ended):
    try:
        await asyncio.sleep(3600)
    finally:
        # What has been begun is put away before anybody goes on.
        await asyncio.sleep(0)
        ended.append(name)


async def fail():
    await asyncio.sleep(0)
    raise LookupError("broken")


def test_results_come_in_the_order_of_the_calls():
    async def one(number):
        await asyncio.sleep((3 - number) / 1000)
        return number

    assert asyncio.run(together(one(number) for number in range(3))) == [0, 1, 2]


def test_when_one_call_fails_the_others_have_ended_before_anybody_hears_of_it():
    async def scenario():
        ended = []
        with pytest.raises(LookupError, match="broken"):
            await together([slowly("a", ended), fail(), slowly("b", ended)])
        return ended, len(asyncio.all_tasks())

    assert asyncio.run(scenario()) == (["a", "b"], 1)


def test_a_caller_that_is_cancelled_takes_its_calls_with_it():
    async def scenario():
        ended = []
        outer = asyncio.ensure_future(together([slowly("a", ended), slowly("b", ended)]))
        await asyncio.sleep(0.01)
        outer.cancel()
        await asyncio.gather(outer, return_exceptions=True)
        return ended, outer.cancelled()

    assert asyncio.run(scenario()) == (["a", "b"], True)


@pytest.mark.parametrize("adapter", [True, False])
def test_a_tool_that_breaks_leaves_no_other_tool_of_the_turn_running(adapter):
    async def scenario():
        ended = []
        action = Action("", [ToolCall("call00000", "wait", {}), ToolCall("call00001", "fail", {})])
        handlers = {"wait": lambda: slowly("wait", ended), "fail": fail}
        if adapter:
            answers = answer_adapters_calls(action, list(handlers), lambda name, _: handlers[name]())
        else:
            answers = answer_calls(action, [schema("wait", ""), schema("fail", "")], handlers)
        with pytest.raises(LookupError):
            await answers
        return ended

    assert asyncio.run(scenario()) == ["wait"]


def test_what_is_closed_is_closed_though_another_close_fails():
    async def scenario():
        closed = []

        async def close(name):
            await asyncio.sleep(0.01)
            closed.append(name)

        with pytest.raises(LookupError, match="broken"):
            await to_their_ends([close("a"), fail(), close("b")])
        return closed

    assert asyncio.run(scenario()) == ["a", "b"]
