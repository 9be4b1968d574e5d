"""What clients of other projects' servers sent and were refused, by public reports: `docs/reports.md` lists them."""

import asyncio

import pytest

CHAT, MESSAGES, RESPONSES, PLAIN = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
USER = {"role": "user", "content": "a"}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"q": "x"}}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r"}]}
ECHOED = {"role": "assistant", "content": "b", "refusal": None, "annotations": None, "audio": None,
          "function_call": None, "tool_calls": [], "reasoning_content": None}  # fmt: skip

EMPTY = {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def item(role, kind, text, **more):
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text, **more}]}


@pytest.mark.parametrize(
    ("path", "body", "reads"),
    [
        # vllm#19862: an error of the server.
        (PLAIN, {"prompt": "test", "max_tokens": None}, "test"),
        # kaito#1399: no limit at all, which is what is left of the context.
        (CHAT, {"messages": [USER]}, "a"),
        # vllm#22403: the client sends back what it was sent, field by field.
        (CHAT, {"messages": [USER, ECHOED, USER], "max_tokens": 5}, "assistant\nb"),
        # vllm#21052: no tools, and a choice among them.
        (CHAT, {"messages": [USER], "tools": [], "tool_choice": "auto", "max_tokens": 5}, "a"),
        (CHAT, {"messages": [USER, CALLED, {"role": "tool", "tool_call_id": "c1", "content": [
            {"type": "text", "text": "r1"}, {"type": "text", "text": "r2"}]}], "tools": [TOOL], "max_tokens": 5},
         "r1\nr2"),
        (CHAT, {"messages": [USER], "stream": False, "stream_options": {"include_usage": True}, "max_tokens": 5}, "a"),
        # hermes-agent#11906: an empty text before a call.
        (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": ""}, USE]}, RESULT],
                    "max_tokens": 5}, '"q": "x"'),
        # litellm#15601, n8n#22550: no reasoning in front of the call of a turn that reasoned.
        (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [USE]}, RESULT], "max_tokens": 1025,
                    "thinking": {"type": "enabled", "budget_tokens": 1024}}, '"q": "x"'),
        # opencode#6176: reasoning without its signature.
        (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"}]}, USER], "max_tokens": 5},
         "assistant\nb"),
        # vllm#33089, vllm#45273: the second turn, with the answer to the first as it was sent.
        (RESPONSES, {"input": [item("user", "input_text", "a"),
                               item("assistant", "output_text", "b", annotations=[]) | {"id": "m1", "status": "done"},
                               item("user", "input_text", "c")], "max_output_tokens": 5}, "assistant\nb"),
        # llama.cpp#20156: tools that are no functions.
        (RESPONSES, {"input": "a", "tools": [{"type": "web_search"}, {"type": "image_generation"},
                                             {"type": "namespace", "name": "mcp", "tools": []}],
                     "max_output_tokens": 5}, "a"),
        # vllm#55974: items that only OpenAI's own server knows; they are counted as ignored, and the turn goes on.
        (RESPONSES, {"input": [item("user", "input_text", "a"), {"type": "mcp_call", "id": "x", "name": "n",
                     "arguments": "{}", "server_label": "s"}], "max_output_tokens": 5}, "a"),
        # opencode#42613: an earlier turn without id, status and annotations, and one without its type.
        (RESPONSES, {"input": [USER, item("assistant", "output_text", "b"), {"role": "assistant", "content": [
            {"type": "output_text", "text": "c"}]}, USER], "max_output_tokens": 5},
         "b<|im_end|>\n<|im_start|>assistant\nc"),
        # claude-code#61822: texts without anything, marked for the cache.
        (MESSAGES, {"system": [EMPTY], "messages": [USER | {"content": [{"type": "text", "text": "a"}, EMPTY]}],
                    "max_tokens": 5}, "user\na<|im_end|>"),
        # inspect_ai#3025: a turn of a reasoning model that begins with a text.
        (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "b"}, USE]}, RESULT],
                    "max_tokens": 1025, "thinking": {"type": "enabled", "budget_tokens": 1024}}, "b<tool_call>"),
        # cherry-studio#20284, jev-ultrafast#37: fields of other servers, which change nothing.
        (CHAT, {"messages": [USER], "summary": "auto", "reasoning": {"effort": "low", "exclude": True},
                "thinking": {"type": "disabled"}, "reasoning_effort": "low", "max_tokens": 5}, "user\na<|im_end|>"),
        # opencode#43467: an image for a policy that reads text, and the refusal that a client adds.
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}, ECHOED, USER],
                "max_tokens": 5}, "a\n[image: this model reads text]<|im_end|>"),
        # A document that is text, and a search result.
        (MESSAGES, {"messages": [{"role": "user", "content": [
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "of it"}},
            {"type": "search_result", "source": "s", "title": "U", "content": [{"type": "text", "text": "found"}]}]}],
                    "max_tokens": 5}, "T\nof it\nU\nfound"),
    ],
)  # fmt: skip
def test_a_request_that_another_server_refused_is_answered_and_all_of_it_is_read(
    make_gateway, path, body, reads
):
    async def scenario():
        gateway = make_gateway(lambda text: "ok")
        gateway.engine.max_model_len = 4096
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            answer = await http.post(path, json={"model": "m", **body})
        assert answer.status_code == 200, answer.text
        return gateway.renderer.tokenizer.decode(gateway.engine.requests[-1].token_ids.tolist())

    assert reads in asyncio.run(scenario())


@pytest.mark.parametrize(("name", "limit"), [("max_tokens", 3), ("max_completion_tokens", 3)])
def test_both_names_of_the_limit_hold(make_gateway, name, limit):
    """llama-cpp-python#1907: the newer one was ignored."""

    async def scenario():
        gateway = make_gateway(lambda text: "a long answer")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            answer = await http.post(CHAT, json={"model": "m", "messages": [USER], name: limit})
        return answer.json()["usage"]["completion_tokens"]

    assert asyncio.run(scenario()) == limit


def test_a_prompt_beyond_the_context_is_refused_by_its_length_not_by_a_negative_limit(make_gateway):
    """vllm#4667: "max_tokens must be at least 1, got -186"."""

    async def scenario():
        gateway = make_gateway(lambda text: "ok")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            return await http.post(CHAT, json={"model": "m", "messages": [USER | {"content": "x" * 2000}]})

    answer = asyncio.run(scenario())
    assert answer.status_code == 400
    assert "maximum context length is 256 tokens" in answer.json()["error"]["message"]


def test_tokens_are_counted_as_they_are_read_with_system_prompt_and_tools(make_gateway):
    """CLIProxyAPI#679: 48 were counted, 728 read; litellm#13252: the route was not there."""
    body = {"model": "m", "system": "Be brief.", "messages": [USER],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]}  # fmt: skip

    async def scenario():
        gateway = make_gateway(lambda text: "ok")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            counted = await http.post("/v1/messages/count_tokens?beta=true", json=body)
            await http.post(MESSAGES, json=body | {"max_tokens": 5})
        return counted.json()["input_tokens"], len(gateway.engine.requests[-1].token_ids)

    counted, read = asyncio.run(scenario())
    assert counted == read


def test_content_of_another_form_is_refused_by_its_place(make_gateway):
    """codex#731: "expected one of a string or array of objects, but got an object instead"."""

    async def scenario():
        gateway = make_gateway(lambda text: "ok")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            part = {"type": "text", "text": "a"}
            return await http.post(CHAT, json={"model": "m", "messages": [USER | {"content": part}]})

    answer = asyncio.run(scenario())
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(
        "messages[0].content: must be a string or a list of parts"
    )


def test_what_a_request_asks_for_is_done_refused_or_counted(make_gateway):
    """PocketLLM#244: choices, stop texts, limits and penalties were ignored without a word."""

    async def scenario():
        gateway = make_gateway(lambda text: "some words")
        gateway.engine.max_model_len = 4096
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:

            async def ask(**more):
                return await http.post(CHAT, json={"model": "m", "messages": [USER], "max_tokens": 30} | more)

            several, stopped, short = (
                await ask(n=3),
                await ask(stop=["w"]),
                await ask(max_completion_tokens=1),
            )
            plain, listed = await ask(frequency_penalty=1.5, seed=3), await ask(logprobs=True, top_logprobs=2)
        return several.json(), stopped.json(), short.json(), plain, listed, dict(episode.counters)

    several, stopped, short, plain, listed, counters = asyncio.run(scenario())
    assert len(several["choices"]) == 3
    assert stopped["choices"][0]["message"]["content"] == "some "
    assert short["usage"]["completion_tokens"] == 1
    assert plain.status_code == 200 and counters["ignored: frequency_penalty"] == 1
    assert listed.status_code == 400 and "top_logprobs: is not served to an episode" in listed.text
