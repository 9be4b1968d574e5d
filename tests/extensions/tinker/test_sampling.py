"""What a request for samples asks of engines, what becomes of it when they end, and how its answer is put together."""

import asyncio
import json

import numpy as np
import pytest

from asyncrl.errors import InfrastructureError, InputError
from asyncrl.extensions.tinker import sampling as module
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.messages import Sample
from asyncrl.extensions.tinker.sampling import Sampling, answer_of, requests_of, stops
from asyncrl.extensions.tinker.tables import FAILED, PROTO, SAMPLE, Request
from asyncrl.extensions.tinker.token_extra import SAMPLER
from asyncrl.extensions.tinker.waiting import Answers
from asyncrl.extensions.tinker.wire import CLASSES
from asyncrl.generation import Generated

PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [5]}, {"type": "encoded_text", "tokens": [6, 7]}]}
TOKENS = np.asarray([5, 6, 7], np.int32)


def asked(params=None, **fields):
    return Sample.model_validate(
        {"prompt": PROMPT, "sampling_params": {"max_tokens": 4} if params is None else params, **fields}
    )


def requests(params=None, context=16, **fields):
    return requests_of(asked(params, **fields), TOKENS, "s:sample:0/1", "p/one", context)


def test_each_sample_is_a_request_of_its_own_with_a_seed_of_its_own():
    found = requests(
        {"max_tokens": 4, "seed": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 3}, num_samples=2
    )
    assert [(one.id, one.seed, one.max_tokens, one.temperature) for one in found] == [
        ("s:sample:0/1/0", 9, 4, 0.5), ("s:sample:0/1/1", 10, 4, 0.5),
    ]  # fmt: skip
    assert all((one.decoding.top_p, one.decoding.top_k) == (0.9, 3) for one in found)
    assert all(one.extras[SAMPLER].adapter == "p/one" for one in found)


def test_a_prompt_is_scored_once_however_many_samples_there_are():
    first, second = requests(num_samples=2, prompt_logprobs=True, topk_sample_logprobs=2)
    assert (first.decoding.prompt_logprobs, first.decoding.top_logprobs) == (True, 2)
    assert (second.decoding.prompt_logprobs, second.decoding.top_logprobs) == (False, 2)
    assert requests(num_samples=2, prompt_logprobs=True)[1].decoding.top_logprobs is None


def test_an_answer_has_what_the_context_leaves():
    assert (
        requests({}, context=16)[0].max_tokens == requests({"max_tokens": 99}, context=16)[0].max_tokens == 13
    )
    with pytest.raises(InputError, match="prompt: must have 1 to 2 tokens, got 3"):
        requests(context=3)


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        (None, ((), (), False)),
        ([], ((), (), True)),
        ("\n\n", ((), ("\n\n",), False)),
        (["a", "b"], ((), ("a", "b"), False)),
        ([3, 4], ((3, 4), (), False)),
    ],
)
def test_a_sequence_ends_at_tokens_texts_its_own_end_or_the_limit_alone(stop, wanted):
    assert stops(asked({"stop": stop}).sampling_params) == wanted


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"target_prompt_logprobs": {"data": [1]}}, "target_prompt_logprobs: this server does not have it"),
        ({"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k: this server does not have it"),
        (
            {"record_stability_info": True},
            "does not have stable_reinforce, which it is for; choose another loss",
        ),
        (
            {"prompt_logprobs": True, "prompt_logprobs_last_n": 3},
            "must be below the prompt's 3 tokens, got 3",
        ),
    ],
)
def test_what_is_not_there_is_refused_by_its_name(fields, why):
    with pytest.raises(InputError, match=why):
        requests(**fields)


def generated(tokens=(8, 9), reason="stop", likeliest=(), prompt=()):
    count = len(tokens)
    return Generated(
        np.asarray(tokens, np.int32), np.full(count, -0.5, np.float32), np.zeros(count, np.int32), reason,
        top_logprobs=likeliest, prompt_logprobs=prompt,
    )  # fmt: skip


def test_prompt_log_probabilities_are_those_of_the_prompts_own_tokens():
    prompt = ({}, {1: -0.1, 6: -3.0}, {7: -0.2})
    message = CLASSES["SampleResponse"]()
    message.ParseFromString(answer_of(asked(prompt_logprobs=True), TOKENS, [generated(prompt=prompt)]))
    found = np.frombuffer(message.prompt_logprobs, "<f4")
    assert np.isnan(found[0]) and found[1:].tolist() == pytest.approx([-3.0, -0.2])
    last = asked(prompt_logprobs=True, prompt_logprobs_last_n=1)
    message.ParseFromString(answer_of(last, TOKENS, [generated(prompt=prompt)]))
    found = np.frombuffer(message.prompt_logprobs, "<f4")
    assert np.isnan(found[:2]).all() and found[2] == pytest.approx(-0.2)


class Engine:
    """Answers as it is told; stands in for one that ends."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def generate(self, request):
        self.asked.append(request.id)
        answer = self.answers.pop(0) if self.answers else generated()
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return await answer()
        return answer


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    ledger = Ledger(tmp_path)
    ledger.add_sampler("s:sample:0", "s", "", "")
    made = Sampling(ledger, Answers(), 16)
    yield made
    ledger.close()


def sampled(server, request=None):
    request = request or Request("s:sample:0", 1, SAMPLE, asked().model_dump_json().encode())
    server.ledger.receive(request)
    server.submit(request)

    async def answered():
        await server.answers.wait(request.id, 10)
        return server.ledger.request("s:sample:0", request.number)

    return answered()


def test_a_request_waits_for_an_engine_and_outlives_those_that_end(server):
    async def play():
        waiting = asyncio.create_task(sampled(server))
        await asyncio.sleep(0.02)
        assert server.num_waiting == 1
        gone = asyncio.get_running_loop().create_future()

        async def closed():
            # Its client is closed while the request is in flight.
            server.engine = None
            gone.cancel()
            return await gone

        server.engine = Engine(InfrastructureError("reset"), closed)
        await asyncio.sleep(0.05)
        server.engine = Engine()
        return await waiting

    found = asyncio.run(play())
    assert found.form == PROTO and found.body == b""


def test_a_request_of_which_engines_end_is_given_up(server):
    server.engine = Engine(*[InfrastructureError("core died")] * 9)

    async def play():
        return await sampled(server)

    found = asyncio.run(play())
    assert found.form == FAILED
    assert json.loads(found.answer) == {
        "error": "no engine could sample it in 4 attempts: core died", "category": "server",
    }  # fmt: skip
    assert len(server.engine.asked) == 4


def test_a_bug_is_told_to_its_client(server):
    server.engine = Engine(ZeroDivisionError("x"))

    async def play():
        return await sampled(server)

    assert json.loads(asyncio.run(play()).answer)["error"] == "the server failed: ZeroDivisionError: x"


def test_a_request_that_its_client_gives_up_is_not_carried_out_by_a_later_server(server):
    async def play():
        waiting = asyncio.create_task(sampled(server))
        await asyncio.sleep(0.02)
        server.cancel("s:sample:0/1")
        server.cancel("s:sample:0/2")
        return await waiting

    assert json.loads(asyncio.run(play()).answer)["error"] == "its client has given it up"
    assert server.ledger.unanswered((SAMPLE,)) == []


def test_what_a_killed_server_has_left_is_sampled_by_the_next(server):
    async def first():
        task = asyncio.create_task(sampled(server))
        await asyncio.sleep(0.02)
        await server.close()
        task.cancel()

    asyncio.run(first())
    assert server.ledger.request("s:sample:0", 1).answer is None
    again = Sampling(server.ledger, server.answers, 16)
    again.engine = Engine()

    async def second():
        again.resume()
        await again.answers.wait("s:sample:0/1", 10)

    asyncio.run(second())
    assert server.ledger.request("s:sample:0", 1).form == PROTO
