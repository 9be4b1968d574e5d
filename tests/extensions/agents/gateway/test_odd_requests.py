"""Requests that hold what no tokenizer, template or JSON writer takes: a refusal that names the place, never a 500."""

import asyncio
import json

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.body import MAX_DEPTH, read_body

HALF = "half \ud83d"
DEEP = "[" * 20_000 + "]" * 20_000
LONG = "9" * 5000
USER = {"role": "user", "content": "1+2"}


async def post(gateway, path, body, **more):
    async with gateway.http((await gateway.open()).key) as http:
        return await http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


def ask(make_gateway, path, body):
    gateway = make_gateway(lambda prompt: "yes")
    return gateway, asyncio.run(post(gateway, path, body))


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": HALF}]}, "messages[0].content"),
        ("/v1/completions", {"prompt": HALF}, "prompt"),
        ("/v1/responses", {"input": HALF}, "input"),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": HALF}]}, "messages[0].content"),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": HALF}]}, "messages[0].content"),
        ("/v1/completions", {"prompt": "x", HALF: 1}, "body"),
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_is_refused_where_it_stands(make_gateway, path, body, place):
    _, answer = ask(make_gateway, path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(f"{place}: character")


def test_both_halves_of_a_pair_are_one_character():
    assert read_body(rb'{"prompt": "\ud83d\ude42"}') == {"prompt": "\U0001f642"}


def test_a_surrogate_in_utf8_is_no_json():
    with pytest.raises(InputError, match="not valid JSON"):
        read_body(b'{"prompt": "\xed\xa0\xbd"}')


def test_a_body_may_be_nested_so_deep_and_no_deeper():
    def nested(depth):
        return b'{"a": ' + b"[" * depth + b"]" * depth + b"}"

    assert read_body(nested(MAX_DEPTH - 1))
    with pytest.raises(InputError, match=f"nested more than {MAX_DEPTH} levels"):
        read_body(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("arguments", [DEEP, LONG, f'{{"a": {LONG}}}', '{"a": "\\ud83d"}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_arguments_that_no_call_could_have_are_shown_to_the_model_as_the_text_they_are(
    make_gateway, path, arguments, monkeypatch
):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    items = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}]
    output = {"type": "function_call_output", "call_id": "c", "output": "3"}
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
    body = {"messages": messages} if path != "/v1/responses" else {"input": [USER, *items, output]}
    gateway = make_gateway(lambda prompt: "yes")
    gateway.engine.max_model_len = 10**6
    answer = asyncio.run(post(gateway, path, body))
    assert answer.status_code == 200, answer.text[:300]
    read = gateway.renderer.tokenizer.decode(gateway.engine.requests[0].token_ids.tolist())
    assert arguments in read or json.dumps(arguments) in read


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_an_input_nested_too_deeply_is_refused(make_gateway, path):
    deep = json.loads("[" * 150 + "]" * 150)
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": deep}}
    body = {"max_tokens": 5, "messages": [USER, {"role": "assistant", "content": [use]}, USER]}
    _, answer = ask(make_gateway, path, body)
    assert answer.status_code == 400
    assert "nested more than" in answer.json()["error"]["message"]


def test_messages_the_template_refuses_are_refused_by_the_count_too(make_gateway, monkeypatch):
    gateway = make_gateway(lambda prompt: "yes")

    def refuse(messages, **options):
        raise ValueError("no system role here")

    monkeypatch.setattr(gateway.renderer.tokenizer, "apply_chat_template", refuse)
    answer = asyncio.run(
        post(gateway, "/v1/messages/count_tokens", {"messages": [{**USER, "content": "fresh"}]})
    )
    assert answer.status_code == 400
    assert "no system role here" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"type": "function"}, "tools[0]: must be"),
        ({"type": "function", "function": {}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "f", "description": 3}}, "tools[0].function.description"),
        ({"type": "function", "function": {"name": "f", "parameters": [1]}}, "tools[0].function.parameters: must be"),
        ({"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}, "parameters.type"),
        ({"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 1}}}}, "properties.a"),
        ({"type": "function", "function": {"name": "f", "parameters": {"required": "a"}}}, "parameters.required"),
    ],
)  # fmt: skip
def test_a_tool_without_a_form_that_templates_take_is_refused_by_field(make_gateway, tool, place):
    body = {"messages": [USER], "tools": [tool]}
    _, answer = ask(make_gateway, "/v1/chat/completions", body)
    assert answer.status_code == 400
    assert place in answer.json()["error"]["message"]


def test_a_schema_of_anthropic_is_refused_by_its_own_name(make_gateway):
    body = {"max_tokens": 5, "messages": [USER], "tools": [{"name": "f", "input_schema": "x"}]}
    _, answer = ask(make_gateway, "/v1/messages", body)
    assert answer.json()["error"]["message"].startswith("tools[0].input_schema: must be a JSON schema")
