"""The gateway against thousands of odd requests: a refusal each, never a server error, and episodes go on."""

import asyncio
import copy
import json
import random
from collections import Counter

import pytest

from tests.credentials import TOKEN

REQUESTS = 500
"""To each route."""
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
]
TOOL = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}
BODIES = {
    "/v1/chat/completions": {
        "model": "m", "messages": MESSAGES, "tools": [{"type": "function", "function": TOOL}], "n": 2,
        "max_tokens": 4, "stop": ["x"], "logprobs": True, "stream": False, "temperature": 1.0,
    },
    "/v1/completions": {"model": "m", "prompt": "hi", "max_tokens": 4, "stop": None, "n": 1, "echo": False},
    "/v1/responses": {
        "model": "m", "input": [{"role": "user", "content": "hi"}], "max_output_tokens": 4,
        "tools": [{"type": "function", **TOOL}], "previous_response_id": None, "stream": False,
    },
    "/v1/messages": {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "system": "be brief",
        "tools": [{"name": "add", "input_schema": {"type": "object"}}], "stream": False,
    },
    "/v1/completions?eval": {
        "prompt": ["hi", [5, 6]], "max_tokens": 4, "echo": True, "logprobs": 2, "top_p": 0.5, "top_k": 3,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    },
    "/v1/chat/completions?eval": {
        "messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "min_p": 0.1, "presence_penalty": 0.5,
        "response_format": {"type": "json_object"},
    },
    "/v1/messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/asyncrl/v1/reward": {"reward": 0.5, "components": {"a": 1.0}},
    "/asyncrl/v1/episodes": {
        "task_id": "t", "episode_index": 0, "temperature": 1.0, "max_tokens": 100, "max_calls": 3, "seed": 1,
    },
}  # fmt: skip
ODD = [
    None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, -0.5, "", "x" * 5000, "\x00", "\ud83d", "🙂", [], {}, [[]] * 50,
    {"a": {"a": {}}}, [None], {"role": "user"}, "user", "assistant", "function", [{"type": "image_url"}],
]  # fmt: skip


def places(value, path=()):
    """Every path inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def disturbed(body, rng):
    """The body with one to three of its parts replaced, removed or added to."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(list(places(body))[1:] or [()])
        if not path:
            return copy.deepcopy(rng.choice(ODD))
        holder = body
        for key in path[:-1]:
            holder = holder[key]
        kind = rng.random()
        if kind < 0.7 or isinstance(holder, list):
            holder[path[-1]] = copy.deepcopy(rng.choice(ODD))
        elif kind < 0.85:
            del holder[path[-1]]
        else:
            holder["unknown"] = copy.deepcopy(rng.choice(ODD))
        if not body:
            return body
    return body


def raw(body, rng):
    """JSON bytes, now and then torn or not JSON at all."""
    text = json.dumps(body).encode()
    chance = rng.random()
    if chance < 0.03:
        return text[: rng.randrange(len(text) + 1)]
    return b"\xff\xfe" + text if chance < 0.05 else text


@pytest.mark.slow
def test_no_request_is_answered_by_a_server_error(make_gateway):
    async def scenario():
        gateway, rng, seen = make_gateway(lambda prompt: "ok"), random.Random(0), Counter()
        episode, key = await gateway.open(), await gateway.open_key()
        async with (
            gateway.http(episode.key) as agent,
            gateway.http(episode.reward_key) as harness,
            gateway.http(TOKEN) as owner,
            gateway.http(key.key) as evaluation,
        ):
            others = {"/asyncrl/v1/reward": harness, "/asyncrl/v1/episodes": owner}
            for path, body in BODIES.items():
                http = evaluation if path.endswith("?eval") else others.get(path, agent)
                assert (await http.post(path, json=body)).status_code == 200, path
                for number in range(REQUESTS):
                    sent = raw(disturbed(body, rng), rng)
                    reply = await http.post(path, content=sent, headers={"content-type": "application/json"})
                    assert reply.status_code < 500, (path, number, sent[:500], reply.text[:500])
                    seen[path, reply.status_code // 100] += 1
            assert (await agent.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"])).is_success
        await gateway.finish(episode, reward=1.0)
        return seen, episode.result

    seen, (trajectories, summary) = asyncio.run(scenario())
    for path in BODIES:
        assert seen[path, 4] > REQUESTS // 20, f"{path}: hardly anything was refused: {seen}"
    assert trajectories
    assert summary["counters"]["retokenized_tokens"] == 0
