"""An engine that answers with what is no answer: its request fails as infrastructure at once, and it is set apart."""

import asyncio
import math
import struct
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from aiohttp import web

from asyncrl.errors import InfrastructureError, InputError
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine import client as client_module
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.health import APART_S, EngineHealth
from asyncrl.services.engine.messages import GarbageError, check_answer, checked_state, frame_limit
from asyncrl.services.engine.placement import Health
from asyncrl.services.engine.router import EngineRouter
from asyncrl.types import Decoding

STATE = {
    "version": 0,
    "paused": False,
    "running": 0,
    "waiting": 0,
    "kv_usage": 0.0,
    "kv_tokens": 1000,
    "max_model_len": 2048,
}


def ids(*tokens):
    return np.array(tokens, "<i4").tobytes()


def floats(*values):
    return np.array(values, "<f4").tobytes()


def good(name, **changes):
    answer = {
        "id": name,
        "token_ids": ids(5, 6, 7),
        "logprobs": floats(-0.5, -1.0, 0.0),
        "spans": [[2, 0, 1], [3, 1, 3]],
        "finish_reason": "stop",
        "cached_tokens": 0,
    }
    return {key: value for key, value in (answer | changes).items() if value is not ...}


def frame(message):
    packed = msgpack.packb(message)
    return struct.pack("<I", len(packed)) + packed


def request(name="r", **changes):
    return GenerateRequest(name, np.arange(1, 5, dtype=np.int32), 5, min_version=2, session="s", **changes)


WRONG = {
    "no tokens": {"token_ids": b"", "logprobs": b"", "spans": []},
    "more tokens than asked for": {
        "token_ids": ids(*range(6)), "logprobs": floats(*[-1.0] * 6), "spans": [[2, 0, 6]],
    },
    "half a token": {"token_ids": b"abc"},
    "tokens as text": {"token_ids": "abcd"},
    "a negative token": {"token_ids": ids(5, -1, 7)},
    "a token beyond the vocabulary": {"token_ids": ids(5, 100, 7)},
    "a log-probability too few": {"logprobs": floats(-1.0, -1.0)},
    "NaN": {"logprobs": floats(-1.0, math.nan, -1.0)},
    "infinity": {"logprobs": floats(-1.0, -math.inf, -1.0)},
    "a probability above 1": {"logprobs": floats(-1.0, 0.5, -1.0)},
    "no spans": {"spans": []},
    "spans that leave a token out": {"spans": [[2, 0, 1], [3, 2, 3]]},
    "spans beyond the end": {"spans": [[2, 0, 4]]},
    "spans that overlap": {"spans": [[2, 0, 2], [3, 1, 3]]},
    "an older version than asked for": {"spans": [[1, 0, 3]]},
    "a version that is no number": {"spans": [["2", 0, 3]]},
    "a version that is true": {"spans": [[True, 0, 3]]},
    "a huge version": {"spans": [[2**40, 0, 3]]},
    "spans that are nil": {"spans": None},
    "no finish reason": {"finish_reason": ...},
    "another finish reason": {"finish_reason": 7},
    "cached tokens as text": {"cached_tokens": "0"},
    "more cached tokens than there are": {"cached_tokens": 9},
    "likely tokens that nobody asked for": {"top_logprobs": [[[1], [-1.0]]] * 3},
    "likely tokens of another form": {"top_logprobs": 7},
    "experts that nobody asked for": {"routed_experts": {"data": b"", "dtype": "|u1", "shape": [0, 1, 1]}},
    "commitments that nobody asked for": {"commitments": [b"\x03\x00\x01\x00\x01"]},
    "a commitment to nothing": {"commitments": [b""]},
    "an error that is no text": {"error": {"a": 1}, "refused": False},
    "an error without whose fault it is": {"error": "x"},
}  # fmt: skip
BYTES = {
    "another request's answer": lambda name: frame(good("somebody else")),
    "an answer to nothing": lambda name: frame({"x": 1}),
    "an answer with a list for a name": lambda name: frame(good([name])),
    "a list": lambda name: frame([1, 2]),
    "a number": lambda name: frame(5),
    "nil": lambda name: frame(None),
    "a map of numbers": lambda name: frame({1: 2}),
    "nothing in a frame": lambda name: struct.pack("<I", 0),
    "no msgpack": lambda name: struct.pack("<I", 4) + b"\xc1" * 4,
    "a deep message": lambda name: struct.pack("<I", 200001) + b"\x91" * 200000 + b"\xc0",
    "a million values": lambda name: (
        struct.pack("<I", 2**20) + b"\xdd\x00\x0f\xff\xfb" + b"\xc0" * (2**20 - 5)
    ),
    "an extension type": lambda name: struct.pack("<I", 4) + b"\xc7\x01\x05a",
    "text that is no UTF-8": lambda name: struct.pack("<I", 6) + b"\x81\xa2id\xa1\xff",
    "a page": lambda name: b"<html>not found</html>",
    "four gigabytes": lambda name: struct.pack("<I", 0xFFFFFFF0) + b"\0" * 2**16,
}


async def playing(answers, act, **options):
    """Serve engines that answer by `answers` and return what `act` makes of their clients."""
    return await playing_by([generate(answer) for answer in answers], act, **options)


async def playing_by(handlers, act, **options):
    """Serve engines whose requests these handle and return what `act` makes of their clients."""
    runners, clients = [], []
    try:
        for handler in handlers:
            app = web.Application()
            app.router.add_post("/asyncrl/v1/generate", handler)
            app.router.add_get("/asyncrl/v1/state", state)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            runners.append(runner)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
            clients.append(EngineClient(url, "t", vocab_size=100, **options))
        return await act(*clients)
    finally:
        await asyncio.gather(*(client.close() for client in clients))
        await asyncio.gather(*(runner.cleanup() for runner in runners))


def generate(answer):
    async def handle(received):
        asked = msgpack.unpackb(await received.read())["requests"]
        response = web.StreamResponse()
        await response.prepare(received)
        try:
            for one in asked:
                await response.write(answer(one["id"]))
        except ConnectionError:
            pass
        return response

    return handle


async def state(received):
    return web.Response(body=msgpack.packb(STATE), content_type="application/msgpack")


async def ask(client):
    return await client.generate(request())


def sampled(answer):
    return asyncio.run(playing([answer], ask))


def test_a_sound_answer_is_taken():
    found = sampled(lambda name: frame(good(name)))
    assert found.token_ids.tolist() == [5, 6, 7]
    assert found.versions.tolist() == [2, 3, 3]


@pytest.mark.parametrize("changes", WRONG.values(), ids=list(WRONG))
def test_an_answer_that_cannot_be_one_is_an_infrastructure_failure(changes):
    with pytest.raises(GarbageError, match=r"answers with garbage: .*request r"):
        sampled(lambda name: frame(good(name, **changes)))


@pytest.mark.parametrize("answer", BYTES.values(), ids=list(BYTES))
def test_so_are_bytes_that_are_no_answer_at_all(answer):
    with pytest.raises(GarbageError, match="answers with garbage"):
        sampled(answer)


def test_so_is_an_answer_that_does_not_end(monkeypatch):
    monkeypatch.setattr(client_module, "FRAME_S", 0.2)

    async def dripping(received):
        response = web.StreamResponse()
        await response.prepare(received)
        await response.write(struct.pack("<I", 100) + b"\x81")
        await asyncio.Event().wait()

    with pytest.raises(GarbageError, match="has begun an answer of 100 bytes and does not end it"):
        asyncio.run(playing_by([dripping], ask))


def test_a_request_that_meets_garbage_is_answered_by_another_engine_and_the_first_is_set_apart():
    async def act(bad, sound):
        router = EngineRouter([bad, sound])
        asked = [
            replace(request(f"r{n}"), token_ids=np.arange(n + 1, n + 5, dtype=np.int32), session=f"s{n}")
            for n in range(16)
        ]
        answers = [await router.generate(one) for one in asked]
        health = {one["url"]: one["health"] for one in router.status()}
        await router.close()
        return [one.engine for one in answers], health, bad.url, sound.url

    answers = [lambda name: frame(good("nobody")), lambda name: frame(good(name))]
    engines, health, bad, sound = asyncio.run(playing(answers, act))
    assert set(engines) == {sound}
    assert health == {bad: "dead", sound: "healthy"}


def test_a_past_version_samples_while_the_engine_serves_a_newer_one_and_no_other_may():
    # An opponent: the engine must have version 2 by now, and version 1 of its adapters is to sample.
    asked = request(version=1)
    check_answer(good("r", spans=[[1, 0, 3]]), asked)
    for spans in ([[2, 0, 3]], [[0, 0, 3]], [[1, 0, 1], [2, 1, 3]]):
        with pytest.raises(GarbageError, match="versions must be from 1 to 1"):
            check_answer(good("r", spans=spans), asked)


def test_every_request_of_a_call_fails_with_the_first_garbage_of_it_and_none_waits():
    async def act(client):
        calls = [client.generate(request(f"r{number}")) for number in range(4)]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    found = asyncio.run(playing([lambda name: frame(good(name if name == "r0" else "nobody"))], act))
    assert [type(one).__name__ for one in found] == ["Generated"] + ["GarbageError"] * 3


@pytest.mark.parametrize("requests", [1, 3])
def test_a_request_that_is_answered_twice_has_no_answer(requests):
    async def act(client):
        calls = [client.generate(request(f"r{number}")) for number in range(requests)]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    last = f"r{requests - 1}"
    found = asyncio.run(playing([lambda name: frame(good(name)) * (2 if name == last else 1)], act))
    assert [type(one).__name__ for one in found] == ["Generated"] * (requests - 1) + ["GarbageError"]
    assert "answers more than it was asked" in str(found[-1])


def test_a_stream_that_stays_open_behind_its_last_answer_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(client_module, "END_S", 0.1)

    async def lingering(received):
        (asked,) = msgpack.unpackb(await received.read())["requests"]
        response = web.StreamResponse()
        await response.prepare(received)
        await response.write(frame(good(asked["id"])))
        await asyncio.Event().wait()

    assert asyncio.run(playing_by([lingering], ask)).token_ids.tolist() == [5, 6, 7]


def test_an_engine_set_apart_stays_so_whatever_it_answers_meanwhile_and_longer_each_time():
    health = EngineHealth(0.0)
    health.garbled(0.0)
    health.answered(1.0, 3)
    assert health.health(1.0) is Health.DEAD
    assert health.health(APART_S) is Health.HEALTHY
    health.garbled(100.0)
    assert [health.set_apart(100.0 + one) for one in (APART_S, 2 * APART_S - 1, 2 * APART_S)] == [
        True,
        True,
        False,
    ]


def test_what_was_asked_for_is_taken_and_its_frames_may_be_as_large():
    extras = {"routed_experts": 0, "commitments": True}
    asked = request(decoding=Decoding(top_logprobs=1, prompt_logprobs=True), extras=extras)
    listed = [[[5, 9], [-0.5, -math.inf]]] * 3
    experts = {"data": bytes(12), "dtype": "|u1", "shape": [6, 2, 1]}
    answer = good("r", top_logprobs=listed, prompt_logprobs=[[[], []], *listed], routed_experts=experts)
    check_answer(answer, asked)
    with pytest.raises(GarbageError, match="data must have 12 bytes"):
        check_answer(answer | {"routed_experts": experts | {"data": bytes(11)}}, asked)
    with pytest.raises(GarbageError, match="at most 2 a position"):
        check_answer(answer | {"top_logprobs": [[[1, 2, 3], [-1.0] * 3]]}, asked)
    with pytest.raises(GarbageError, match="dtype must be one of"):
        check_answer(answer | {"routed_experts": experts | {"dtype": "O"}}, asked)
    assert frame_limit([asked]) > frame_limit([request()]) >= 2**20


@pytest.mark.parametrize(
    "change",
    [
        *({"version": ...}, {"version": "1"}, {"version": 2**40}, {"running": -1}, {"kv_usage": math.nan}),
        *({"kv_usage": 1e9}, {"max_model_len": 1.5}, {"paused": "no"}, {"waiting": True}),
    ],
    ids=str,
)
def test_a_state_is_garbage_where_its_numbers_are_none(change):
    assert checked_state(STATE)["paused"] is False
    with pytest.raises(GarbageError):
        checked_state({key: value for key, value in (STATE | change).items() if value is not ...})


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InputError), (413, InputError), (401, GarbageError), (500, GarbageError)]
)
def test_a_status_says_whether_the_request_or_the_engine_is_at_fault(status, kind):
    async def refuse(received):
        return web.Response(status=status, body=msgpack.packb({"error": "no"}))

    with pytest.raises(kind, match="no") as found:
        asyncio.run(playing_by([refuse], ask))
    assert isinstance(found.value, InfrastructureError) == (kind is GarbageError)
