"""Continuous batching, worked out by hand."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.clock import now_s
from asyncrl.errors import InfrastructureError
from asyncrl.extensions.simulation.costs import EngineCosts
from asyncrl.extensions.simulation.engine import SimulatedEngine
from asyncrl.extensions.simulation.virtual_loop import run_virtually
from asyncrl.generation import GenerateRequest

ONE = EngineCosts(iteration_s=1.0)


def request(name, tokens, context=4, order=0, session="", prompt=0):
    ids = np.full(context, prompt, np.int32)
    return GenerateRequest(name, ids, max_tokens=tokens, order=order, session=session or name)


def ends(costs, *requests, then=None):
    """When each request ends, and the versions of its tokens."""

    async def one(engine, asked):
        generated = await engine.generate(asked)
        return now_s(), generated.versions.tolist()

    async def all_of_them():
        engine = SimulatedEngine("http://engine", costs)
        work = [one(engine, asked) for asked in requests]
        return (await asyncio.gather(*work, *([then(engine)] if then else [])))[: len(requests)]

    return run_virtually(all_of_them())


def times(found):
    return [pytest.approx(at) for at, _ in found]


def test_sequences_of_a_batch_get_a_token_each_iteration():
    assert [at for at, _ in ends(ONE, request("a", 3), request("b", 5))] == times([(3, 0), (5, 0)])


def test_a_larger_batch_takes_longer_iterations():
    # Three iterations of two sequences at 1 + 2 s, two of one at 1 + 1 s.
    found = ends(replace(ONE, sequence_s=1.0), request("a", 3), request("b", 5))
    assert [at for at, _ in found] == times([(9, 0), (13, 0)])


def test_each_iteration_reads_the_tokens_sampled_before_it():
    # 4 tokens of context, then 5, 6: half a token more on average, since the simulation is continuous.
    found = ends(replace(ONE, context_token_s=1.0), request("a", 3))
    assert [at for at, _ in found] == times([(3 * 1 + 3 * 4 + 3 * 3 / 2, 0)])


def test_a_sequence_starts_where_the_cache_has_room_for_half_its_answer():
    # 4 + 4 / 2 tokens each: two have room in 12 tokens, and wait for each other in 11.
    both, in_turn = (
        ends(replace(ONE, kv_tokens=tokens), request("a", 4), request("b", 4)) for tokens in (12, 11)
    )
    assert [at for at, _ in both] == times([(4, 0), (4, 0)])
    assert [at for at, _ in in_turn] == times([(4, 0), (8, 0)])


def test_contexts_that_are_not_cached_are_computed_first_and_siblings_share_their_prompt():
    costs = replace(ONE, prefill_token_s=0.5)
    alone = ends(costs, request("a", 2, context=4))
    siblings = ends(costs, request("a", 2, context=4, prompt=7), request("b", 2, context=4, prompt=7))
    strangers = ends(costs, request("a", 2, context=4, prompt=7), request("b", 2, context=4, prompt=8))
    # The last token of the second sibling's context is computed again: what it samples first depends on it.
    assert [alone[0][0], siblings[1][0], strangers[1][0]] == times([(4, 0), (4.5, 0), (6, 0)])


def test_a_conversation_that_goes_on_finds_its_context_cached():
    async def talk(block_tokens):
        engine = SimulatedEngine(
            "http://engine", replace(ONE, prefill_token_s=1.0, block_tokens=block_tokens)
        )
        await engine.generate(request("1", 2, context=4, session="s"))
        first = now_s()
        await engine.generate(request("2", 2, context=7, session="s"))
        return first, now_s()

    # 4 to prefill and 2 sampled; then 1 observed token to prefill and 2 sampled.
    assert run_virtually(talk(1)) == (pytest.approx(6), pytest.approx(9))
    # Of the 6 tokens that are there, one block of 4 is cached: 3 to prefill.
    assert run_virtually(talk(4)) == (pytest.approx(6), pytest.approx(11))


def test_older_leases_go_first_where_the_engine_is_full():
    found = ends(
        replace(ONE, max_num_seqs=1), request("a", 2), request("late", 2, order=9), request("early", 2)
    )
    assert [at for at, _ in found] == times([(2, 0), (6, 0), (4, 0)])


def test_a_version_in_the_middle_of_a_turn_marks_the_tokens_after_it():
    async def publish(engine):
        await asyncio.sleep(2.0)
        await engine.take_over(1, swap_s=10.0, finish_requests=False, keep_kv=True)

    found = ends(ONE, request("a", 5), then=publish)
    assert found == [(pytest.approx(15), [0, 0, 1, 1, 1])]


def test_without_its_cache_a_running_sequence_is_computed_again():
    async def publish(engine):
        await asyncio.sleep(6.0)
        await engine.take_over(1, swap_s=1.0, finish_requests=False, keep_kv=False)

    # 4 s of prefill, 2 tokens, the swap, 4 + 2 tokens again, 3 tokens.
    found = ends(replace(ONE, prefill_token_s=1.0), request("a", 5), then=publish)
    assert found == [(pytest.approx(16), [0, 0, 1, 1, 1])]


def test_an_asynchronous_version_waits_for_running_sequences_and_holds_back_new_ones():
    async def publish(engine):
        await asyncio.sleep(1.0)
        await engine.take_over(1, swap_s=1.0, finish_requests=True, keep_kv=False)

    async def later(engine):
        await asyncio.sleep(2.0)
        return now_s(), (await engine.generate(request("b", 2))).versions.tolist(), now_s()

    async def both():
        engine = SimulatedEngine("http://engine", ONE)
        first = engine.generate(request("a", 3))
        answers = await asyncio.gather(first, publish(engine), later(engine))
        return answers[0].versions.tolist(), answers[2]

    assert run_virtually(both()) == ([0, 0, 0], (pytest.approx(2), [1, 1], pytest.approx(6)))


def test_a_dead_engine_fails_what_it_ran_and_serves_again_later():
    async def die():
        engine = SimulatedEngine("http://engine", ONE)
        running = asyncio.ensure_future(engine.generate(request("a", 5)))
        await asyncio.sleep(1.0)
        engine.die()
        with pytest.raises(InfrastructureError, match="died"):
            await running
        with pytest.raises(InfrastructureError, match="down"):
            await engine.generate(request("b", 1))
        await asyncio.sleep(3.0)
        engine.restart(2)
        generated = await engine.generate(request("c", 2))
        times = engine.settle_times()
        return generated.versions.tolist(), times.dead_s, times.busy_s, engine.in_flight

    assert run_virtually(die()) == ([2, 2], pytest.approx(3), pytest.approx(3), 0)


def test_a_slower_engine_takes_longer_from_then_on():
    async def slow(engine):
        await asyncio.sleep(2.0)
        engine.set_speed(0.5)

    assert ends(ONE, request("a", 4), then=slow)[0][0] == pytest.approx(6)


def test_an_engine_serves_on_when_the_trainer_dies_in_the_middle_of_a_version():
    async def die():
        engine = SimulatedEngine("http://engine", ONE)
        running = asyncio.ensure_future(engine.generate(request("a", 4)))
        await asyncio.sleep(1.0)
        publishing = asyncio.ensure_future(engine.take_over(1, 9.0, finish_requests=False, keep_kv=True))
        await asyncio.sleep(2.0)
        publishing.cancel()
        return (await running).versions.tolist(), now_s()

    assert run_virtually(die()) == ([0, 0, 0, 0], pytest.approx(6))
