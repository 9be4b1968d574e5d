"""`/v1/responses` and Anthropic's `/v1/messages`, through the real clients: the same trees as chat."""

import asyncio

import pytest

from tests.packages import ImportedWhenUsed

anthropic = ImportedWhenUsed("anthropic")
openai = ImportedWhenUsed("openai")

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
FLAT = [{"type": "function", "name": "add", "description": "adds", "parameters": SCHEMA, "strict": False}]
CUSTOM = [{"name": "add", "description": "adds", "input_schema": SCHEMA}]
USER = {"role": "user", "content": "1+2"}


def calls_then_answers(prompt):
    return "three" if "<|im_start|>tool\n" in prompt else f"well {CALL}"


def turns_of(trajectory):
    return [trajectory.token_ids[turn.start : turn.end].tolist() for turn in trajectory.turns]


def check_one_exact_trajectory(gateway, trajectories, summary):
    (trajectory,) = trajectories
    expected = [gateway.engine.tokens(text).tolist() for text in (f"well {CALL}", "three")]
    assert turns_of(trajectory) == expected
    assert summary["counters"]["retokenized_tokens"] == 0


@pytest.mark.parametrize("by_id", [True, False])
def test_responses_go_on_by_id_or_by_items_as_one_trajectory(make_gateway, by_id):
    async def scenario():
        gateway = make_gateway(calls_then_answers)
        episode = await gateway.open()
        client = gateway.openai(episode)
        first = await client.responses.create(model="any", instructions="be brief", input="1+2", tools=FLAT)
        message, call = first.output
        assert (message.content[0].text, call.name, call.arguments) == ("well", "add", '{"a": 1, "b": 2}')
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        if by_id:
            more = {"previous_response_id": first.id, "input": [result]}
        else:
            said = [item.model_dump(exclude_none=True) for item in first.output]
            more = {"input": [USER, *said, result]}
        second = await client.responses.create(model="any", instructions="be brief", tools=FLAT, **more)
        assert (second.output_text, second.status) == ("three", "completed")
        return gateway, *await gateway.finish(episode)

    check_one_exact_trajectory(*asyncio.run(scenario()))


def test_a_streamed_response_adds_up_to_the_response(make_gateway):
    async def scenario():
        gateway = make_gateway(calls_then_answers)
        client = gateway.openai(await gateway.open())
        async with client.responses.stream(model="any", input="1+2", tools=FLAT) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        async with client.responses.stream(model="any", input="1+2", max_output_tokens=40) as stream:
            plain = [event async for event in stream]
        return kinds, final, plain

    kinds, final, plain = asyncio.run(scenario())
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.function_call_arguments.done" in kinds
    assert [item.type for item in final.output] == ["message", "function_call"]
    deltas = "".join(e.delta for e in plain if e.type == "response.output_text.delta")
    assert deltas == f"well {CALL}"[:40]
    assert plain[-1].response.incomplete_details.reason == "max_output_tokens"


def test_an_unknown_previous_response_is_refused(make_gateway):
    async def scenario():
        gateway = make_gateway(calls_then_answers)
        client = gateway.openai(await gateway.open())
        await client.responses.create(model="any", input="x", previous_response_id="r")

    with pytest.raises(openai.BadRequestError, match="no response 'r'"):
        asyncio.run(scenario())


@pytest.mark.parametrize("streamed", [False, True])
def test_messages_of_anthropic_with_tools_are_one_exact_trajectory(make_gateway, streamed):
    async def ask(client, messages):
        options = {
            "model": "any",
            "max_tokens": 120,
            "system": "be brief",
            "messages": messages,
            "tools": CUSTOM,
        }
        if not streamed:
            return await client.messages.create(**options)
        async with client.messages.stream(**options) as stream:
            return await stream.get_final_message()

    async def scenario():
        gateway = make_gateway(calls_then_answers)
        episode = await gateway.open()
        client = gateway.anthropic(episode)
        first = await ask(client, [USER])
        text, use = first.content
        assert (text.text, use.name, use.input, first.stop_reason) == (
            "well",
            "add",
            {"a": 1, "b": 2},
            "tool_use",
        )
        result = [{"type": "tool_result", "tool_use_id": use.id, "content": "3"}]
        said = [block.model_dump(exclude_none=True) for block in first.content]
        second = await ask(
            client, [USER, {"role": "assistant", "content": said}, {"role": "user", "content": result}]
        )
        assert (second.content[0].text, second.stop_reason) == ("three", "end_turn")
        return gateway, *await gateway.finish(episode)

    check_one_exact_trajectory(*asyncio.run(scenario()))


def test_anthropic_clients_see_stops_limits_counts_and_errors_of_their_own_kind(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "one two three")
        episode = await gateway.open()
        client = gateway.anthropic(episode)
        options = {"model": "any", "messages": [USER]}
        stopped = await client.messages.create(max_tokens=50, stop_sequences=["two"], **options)
        cut = await client.messages.create(max_tokens=4, **options)
        count = await client.messages.count_tokens(**options)
        with pytest.raises(anthropic.BadRequestError, match="user, assistant or system"):
            await client.messages.create(model="any", max_tokens=4, messages=[{"role": "x", "content": "y"}])
        await gateway.finish(episode)
        with pytest.raises(anthropic.PermissionDeniedError, match="has ended"):
            await client.messages.create(max_tokens=4, **options)
        return gateway, stopped, cut, count

    gateway, stopped, cut, count = asyncio.run(scenario())
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == (
        "stop_sequence", "two", "one ",
    )  # fmt: skip
    assert (cut.stop_reason, cut.content[0].text, cut.usage.output_tokens) == ("max_tokens", "one ", 4)
    assert count.input_tokens == len(gateway.engine.requests[0].token_ids)
