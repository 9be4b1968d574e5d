"""Ids, reasons, limits and refusals in the words that client libraries look for."""

import asyncio

import pytest

from asyncrl.types import FailureClass
from tests.packages import ImportedWhenUsed

anthropic = ImportedWhenUsed("anthropic")
openai = ImportedWhenUsed("openai")

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
CUSTOM = [{"name": "add", "input_schema": SCHEMA}]
USER = {"role": "user", "content": "1+2"}
LONG = {"role": "user", "content": "x" * 2000}


def with_clients(make_gateway, reply, scenario, **spec):
    """Run `scenario(gateway, OpenAI's client, Anthropic's client)` on a fresh episode."""

    async def run():
        gateway = make_gateway(lambda prompt: reply)
        episode = await gateway.open(**spec)
        return await scenario(gateway, gateway.openai(episode), gateway.anthropic(episode))

    return asyncio.run(run())


async def refusals(gateway, client, claude):
    """What each API answers to a conversation that is too long; how long it is as the gateway counts."""
    count = (await claude.messages.count_tokens(model="m", messages=[LONG])).input_tokens
    found = []
    for call in (
        client.chat.completions.create(model="m", messages=[LONG]),
        client.chat.completions.create(model="m", messages=[LONG], stream=True),
        client.completions.create(model="m", prompt=LONG["content"]),
        client.responses.create(model="m", input=LONG["content"]),
        claude.messages.create(model="m", max_tokens=9, messages=[LONG]),
    ):
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
            await call
        found.append(caught.value)
    return found, count


def test_a_context_too_long_for_the_engine_is_refused_in_each_apis_own_words(make_gateway):
    (*openais, claude), count = with_clients(make_gateway, "yes", refusals)
    for error in openais:
        assert error.code == "context_length_exceeded"
        assert "This model's maximum context length is 256 tokens." in error.message
    assert all("context_length_exceeded" in str(error) for error in openais)
    assert f"you requested {count + 1} tokens ({count} in the messages" in openais[0].message
    assert claude.body["error"] == {
        "type": "invalid_request_error", "message": f"prompt is too long: {count} tokens > 255 maximum",
    }  # fmt: skip


def test_the_limit_is_that_of_the_engine_unless_the_episode_has_a_lower_one(make_gateway):
    async def ask(gateway, client, claude):
        gateway.engine.max_model_len = 1000
        models = await client.models.list(), await client.models.retrieve("mine")
        claudes = [model async for model in claude.models.list()]
        message = {"role": "user", "content": "x" * 90}
        return models, claudes, await client.chat.completions.create(model="m", messages=[message])

    (models, mine), claudes, answer = with_clients(make_gateway, "y" * 400, ask)
    assert [(model.id, model.max_model_len) for model in (*models.data, mine)] == [
        ("policy", 1000),
        ("mine", 1000),
    ]
    assert [model.id for model in claudes] == ["policy"]
    assert answer.choices[0].finish_reason == "stop"
    (models, _), _, answer = with_clients(make_gateway, "y" * 400, ask, max_tokens=200)
    assert models.data[0].max_model_len == 200
    assert (answer.choices[0].finish_reason, answer.usage.total_tokens) == ("length", 200)


def test_without_an_engine_that_answers_a_call_fails_as_infrastructure(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        gateway.engine.max_model_len = 0
        episode = await gateway.open()
        with pytest.raises(openai.InternalServerError, match="no engine answers"):
            await gateway.openai(episode).chat.completions.create(model="m", messages=[USER])
        (trajectory,), summary = await gateway.finish(episode, status="failed", failure="infrastructure")
        return trajectory.failure, summary["counters"]["infrastructure_errors"]

    assert asyncio.run(scenario()) == (FailureClass.INFRASTRUCTURE, 1)


def test_ids_begin_as_those_of_the_apis_do_and_rewards_name_calls_by_them(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        client, claude = gateway.openai(episode), gateway.anthropic(episode)
        chat = await client.chat.completions.create(model="m", messages=[USER], n=2)
        stream = [
            c async for c in await client.chat.completions.create(model="m", messages=[USER], stream=True)
        ]
        plain = await client.completions.create(model="m", prompt="x")
        response = await client.responses.create(model="m", input="x")
        async with client.responses.stream(model="m", input="x") as events:
            streamed = [event async for event in events]
        message = await claude.messages.create(model="m", max_tokens=9, messages=[USER])
        ids = [chat.id, stream[0].id, plain.id, response.id, response.output[0].id, message.id]
        for number, call_id in enumerate((f"{chat.id}:1", plain.id, response.id, message.id)):
            episode.add_reward({"reward": 2.0**number, "call_id": call_id})
        return ids, {c.id for c in stream}, streamed, episode.describe()["reward"]

    ids, chunks, streamed, reward = asyncio.run(scenario())
    prefixes = [call_id.partition(mark)[0] + mark for call_id, mark in zip(ids, "---___", strict=True)]
    assert prefixes == ["chatcmpl-", "chatcmpl-", "cmpl-", "resp_", "msg_", "msg_"]
    assert len(chunks) == 1
    items = {e.item_id for e in streamed if hasattr(e, "item_id")}
    assert items == {streamed[-1].response.output[0].id}
    assert reward == 15.0


@pytest.mark.parametrize(
    ("reply", "options", "openai_reason", "anthropic_reason"),
    [
        ("yes", {}, "stop", "end_turn"),
        ("yes and more", {"max_tokens": 4}, "length", "max_tokens"),
        ("yes and more", {"stop": ["and"]}, "stop", "stop_sequence"),
        (f"well {CALL}", {"tools": True}, "tool_calls", "tool_use"),
        (f"{CALL}{CALL}", {"tools": True, "max_tokens": len(CALL) + 20}, "length", "max_tokens"),
        (f"{CALL} END", {"tools": True, "stop": ["END"]}, "tool_calls", "tool_use"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_every_end_has_the_reason_of_each_api(
    make_gateway, reply, options, openai_reason, anthropic_reason, streamed
):
    limit, stop, tools = options.get("max_tokens", 150), options.get("stop"), options.get("tools")

    async def ask(gateway, client, claude):
        chat = {"model": "m", "messages": [USER], "max_tokens": limit, "stop": stop}
        answer = await client.chat.completions.create(
            **chat, **({"tools": TOOLS} if tools else {}), stream=streamed
        )
        choice = [c async for c in answer][-1].choices[0] if streamed else answer.choices[0]
        options = {"stop_sequences": stop} if stop else {}
        options |= {"tools": CUSTOM} if tools else {}
        options |= {"model": "m", "messages": [USER], "max_tokens": limit}
        if not streamed:
            return choice.finish_reason, await claude.messages.create(**options)
        async with claude.messages.stream(**options) as stream:
            return choice.finish_reason, await stream.get_final_message()

    reason, message = with_clients(make_gateway, reply, ask)
    assert (reason, message.stop_reason) == (openai_reason, anthropic_reason)
    assert message.stop_sequence == (stop[0] if anthropic_reason == "stop_sequence" else None)
