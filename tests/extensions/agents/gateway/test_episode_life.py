"""Episodes over time: clients that go away, keys that expire, streams that fail, msgpack as on the worker's side."""

import asyncio
import json

import msgpack
import pytest

from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.data.codec import trajectory_from_map
from asyncrl.errors import InfrastructureError, UnavailableError
from asyncrl.extensions.agents.gateway.open_episodes import ENDED_S, Episodes, NoEpisode
from asyncrl.extensions.agents.gateway.pauses import FIRST_GUESS_S, MARGIN, Pauses
from asyncrl.extensions.agents.gateway.recorded_episode import EpisodeSpec
from asyncrl.extensions.agents.gateway.sampler import Sampler
from tests.credentials import TOKEN

USER = {"role": "user", "content": "q"}


async def raw_call(app, key, path, body, leaves):
    """One request straight on ASGI whose client `leaves()` at some point; returns the messages it was sent."""
    sent, asked = [], False

    async def receive():
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": json.dumps(body).encode()}
        await leaves()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", f"Bearer {key}".encode())]
    await app({"type": "http", "path": path, "method": "POST", "headers": headers}, receive, send)
    return sent


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_whose_client_left_is_ended_and_leaves_no_turn(make_gateway, stream):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        asked, ended = asyncio.Event(), asyncio.Event()

        async def never(request):
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        gateway.engine.generate = never
        body = {"messages": [USER], "stream": stream}
        async with asyncio.timeout(20):
            await raw_call(gateway.app, episode.key, "/v1/chat/completions", body, asked.wait)
            await ended.wait()
        return episode, await gateway.finish(episode)

    episode, ((trajectory,), summary) = asyncio.run(scenario())
    assert (summary["calls"], trajectory.num_tokens, episode.running) == (0, 0, {})
    assert summary["counters"]["undelivered_calls"] == 1


STREAMED = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": {"messages": [USER], "max_tokens": 5},
    "/v1/responses": {"input": "x"},
}


async def failing_streams(gateway, late):
    """The answer to a streamed call of each API whose engine fails, and what finishing the episode returns.

    late: fail when the answer has begun.
    """
    episode = await gateway.open()
    failure = gateway.engine.failure = InfrastructureError("no engine")
    if late:

        async def generate(request):
            await asyncio.sleep(0.3)
            raise failure

        gateway.engine.generate = generate
    async with gateway.http(episode.key) as http:
        answers = [await http.post(path, json={**body, "stream": True}) for path, body in STREAMED.items()]
    return answers, await gateway.finish(episode)


def test_a_stream_that_fails_before_it_says_anything_is_answered_502(make_gateway):
    answers, (_, summary) = asyncio.run(failing_streams(make_gateway(lambda prompt: "yes"), late=False))
    assert [answer.status_code for answer in answers] == [502] * len(STREAMED)
    assert {answer.json()["error"]["message"] for answer in answers} == {"no engine"}
    assert (summary["calls"], summary["counters"]["infrastructure_errors"]) == (0, len(STREAMED))


def test_a_stream_that_fails_later_says_so_in_an_event_and_leaves_no_turn(make_gateway, monkeypatch):
    monkeypatch.setattr("asyncrl.extensions.agents.gateway.api.PING_S", 0.1)
    answers, (_, summary) = asyncio.run(failing_streams(make_gateway(lambda prompt: "yes"), late=True))
    assert [answer.status_code for answer in answers] == [200] * len(STREAMED)
    chat, plain, anthropic, responses = (answer.text for answer in answers)
    assert '"message":"no engine"' in chat.splitlines()[-2]
    assert '"message":"no engine"' in plain.splitlines()[-2]
    assert "event: error" in anthropic
    assert "event: response.failed" in responses
    assert summary["calls"] == 0


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"[" * 5000])
def test_a_body_that_is_no_object_is_refused(make_gateway, body):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            kind = {"Content-Type": "application/json"}
            return await http.post("/v1/chat/completions", content=body, headers=kind)

    answer = asyncio.run(scenario())
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_finishing_in_msgpack_gives_trajectories_as_the_codec_reads_them(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            await http.post("/v1/chat/completions", json={"messages": [USER]})
        headers = {"content-type": "application/msgpack"}
        async with gateway.http(TOKEN) as http:
            route = f"/asyncrl/v1/episodes/{episode.id}/finish"
            answer = await http.post(route, content=msgpack.packb({"reward": 1.5}), headers=headers)
        return episode, msgpack.unpackb(answer.content)

    episode, answer = asyncio.run(scenario())
    trajectory = trajectory_from_map(answer["trajectories"][0])
    assert trajectory.reward == 1.5
    assert trajectory.token_ids.tolist() == episode.result[0][0].token_ids.tolist()


def test_hints_tell_the_router_how_long_a_context_is_needed(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            hint = {"x-asyncrl-ttl-s": "90", "x-asyncrl-agent": "searcher"}
            await http.post("/v1/chat/completions", json={"messages": [USER]}, headers=hint)
            await http.post("/v1/chat/completions", json={"messages": [{**USER, "content": "other"}]})
            wrong = await http.post(
                "/v1/chat/completions", json={"messages": [USER]}, headers={"x-asyncrl-ttl-s": "x"}
            )
        assert wrong.status_code == 400
        return gateway.engine.held, await gateway.finish(episode)

    held, (trajectories, _) = asyncio.run(scenario())
    assert [ttl_s for _, _, ttl_s in held[:2]] == [90.0, MARGIN * FIRST_GUESS_S]
    assert {(num_tokens, ttl_s) for _, num_tokens, ttl_s in held[2:]} == {(0, 0.0)}
    assert [t.info.get("agent") for t in trajectories] == [None, "searcher"]


START = '<tool_call>{"name": "start", "arguments": {}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "start", "parameters": {"type": "object"}}}]


def test_a_sub_agent_hangs_from_the_turn_whose_tool_call_started_it(make_gateway):
    """The main agent starts a searcher, which starts a reader, and goes on when both have ended."""

    async def scenario():
        gateway = make_gateway(lambda prompt: START if "go" in prompt.rpartition("user\n")[2] else "yes")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:

            async def ask(messages, caller="", agent=""):
                headers = {"x-asyncrl-caller": caller} | ({"x-asyncrl-agent": agent} if agent else {})
                body = {"messages": messages, "tools": TOOLS}
                return await http.post("/v1/chat/completions", json=body, headers=headers)

            opening = [{"role": "user", "content": "go"}]
            first = (await ask(opening)).json()
            started = first["choices"][0]["message"]
            call_id = started["tool_calls"][0]["id"]
            # One names the tool call, the other the answer that holds it.
            second = (await ask([{"role": "user", "content": "go on"}], call_id, "searcher")).json()
            await ask([{"role": "user", "content": "a"}], second["id"], "reader")
            await ask([*opening, started, {"role": "tool", "tool_call_id": call_id, "content": "ok"}])
            wrong = await ask(opening, "call_of_nobody")
        assert wrong.status_code == 400
        assert "this episode has no call 'call_of_nobody'" in wrong.json()["error"]["message"]
        return (await gateway.finish(episode))[0]

    trajectories = asyncio.run(scenario())
    # The main agent first, the others in the order in which they began.
    assert [
        (t.info.get("agent"), t.info.get("called_by"), t.info.get("call_branch"), t.info.get("call_turn"))
        for t in trajectories
    ] == [(None, None, None, None), ("searcher", "", 0, 0), ("reader", "searcher", 1, 0)]


PASSED_ON = (
    '<tool_call>{"name": "start", "arguments": {"task": "find the paper on stale gradients"}}</tool_call>'
)


def test_a_sub_agent_without_the_header_hangs_from_the_turn_whose_words_it_was_given(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: PASSED_ON if "go" in prompt.rpartition("user\n")[2] else "yes")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            for text in ("go", "You search. find the paper on stale gradients", "something else"):
                body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS}
                (await http.post("/v1/chat/completions", json=body)).raise_for_status()
        return (await gateway.finish(episode))[0]

    trajectories = asyncio.run(scenario())
    assert [(t.info.get("call_branch"), t.info.get("call_turn")) for t in trajectories] == [
        (None, None),
        (None, None),
        (0, 0),
    ]


def test_idle_episodes_expire(renderer):
    now = [0.0]
    engines = type("Engines", (), {"hold": lambda *_: None})()
    sampler = Sampler(engines, renderer, parse_hermes, 256)
    episodes = Episodes(sampler, max_episodes=2, idle_s=100.0, clock=lambda: now[0])
    idle, done = (episodes.open(EpisodeSpec(task_id="t")) for _ in range(2))
    with pytest.raises(UnavailableError, match="all 2 episodes are open"):
        episodes.open(EpisodeSpec(task_id="t"))
    done.finish({"reward": 1.0})
    episodes.ended(done)
    now[0] = ENDED_S + 1
    assert episodes.expire() == 1
    with pytest.raises(NoEpisode):
        episodes.by_id(done.id)
    assert episodes.by_key(idle.key) is idle
    now[0] = 101.0
    assert episodes.expire() == 1
    assert (len(episodes), episodes.by_key(idle.key)) == (0, None)
    assert (episodes.counters["opened"], episodes.counters["ended"], episodes.counters["expired"]) == (
        2,
        1,
        1,
    )


def test_the_time_to_live_follows_the_pauses_of_agents():
    now = [0.0]
    pauses = Pauses(clock=lambda: now[0])
    for number in range(300):
        pauses.began(str(number))
        now[0] += 2.0
        pauses.ended(str(number))
        pauses.ended(str(number))
    assert pauses.ttl_s == pytest.approx(MARGIN * 2.0, rel=1e-3)
