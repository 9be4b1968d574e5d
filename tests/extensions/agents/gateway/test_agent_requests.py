"""Requests in the forms in which Codex, Claude Code and agents' SDKs send them are answered, with exact tokens."""

import asyncio
import json

import numpy as np
import pytest

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.extensions.agents.gateway.wire_tools import (
    read_chat_tools,
    read_messages_tools,
    read_responses_tools,
)
from asyncrl.types import Status
from tests.chat.real_templates import make_tokenizer
from tests.extensions.agents.gateway.conftest import Gateway, ScriptedEngine

CONTEXT = 20_000
USER = {"role": "user", "content": "Fix calc.py."}
SHELL = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
PICTURE = "data:image/png;base64,iVBORw0KGgo"
"""Cut short: a model that reads text never looks at it."""
CODEX = {"user-agent": "codex_exec/0.171.0 (Debian 12.0.0; x86_64)", "thread-id": "main"}
CODEX_TOOLS = [
    {"type": "function", "name": "exec_command", "description": "Runs.", "strict": False, "parameters": SHELL},
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Sub-agents.",
        "tools": [{"type": "function", "name": "spawn_agent", "strict": False, "parameters": SHELL}],
    },
    {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": {
        "type": "grammar", "syntax": "lark", "definition": "start: LINE+"}},
    {"type": "local_shell"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": SHELL},
    {"type": "web_search", "external_web_access": True},
    {"type": "image_generation"},
]  # fmt: skip
STRICT = """\
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if tools %}{{- tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
ALTERNATING = """\
{%- for message in messages %}
    {%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
THINKS = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + ('<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '') }}
{%- endif %}
"""


def call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Asked:
    """One episode behind a gateway whose engine says what it is told, turn by turn."""

    def __init__(self, make_gateway, *turns, template=None, **spec):
        self.turns, self.spec = list(turns), spec
        if template is None:
            self.gateway = make_gateway(self._say)
        else:
            tokenizer = make_tokenizer(template, ["<|im_end|>"])
            renderer = ChatRenderer(tokenizer)
            self.gateway = Gateway(renderer, ScriptedEngine(renderer, self._say))
        self.gateway.engine.max_model_len = CONTEXT
        self.said = []

    def _say(self, prompt):
        self.said.append(self.turns.pop(0) if len(self.turns) > 1 else self.turns[0])
        return self.said[-1]

    async def open(self):
        self.episode = await self.gateway.open(**self.spec)

    async def post(self, path, body, headers=None):
        async with self.gateway.http(self.episode.key) as http:
            answer = await http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        if "text/event-stream" not in answer.headers["content-type"]:
            return answer.json()
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    def read(self, number=-1):
        """What the engine read."""
        request = self.gateway.engine.requests[number]
        return self.gateway.renderer.tokenizer.decode(request.token_ids.tolist())

    async def finish(self, **body):
        trajectories, summary = await self.gateway.finish(self.episode, **body)
        assert summary["counters"]["retokenized_tokens"] == 0
        wanted = [self.gateway.engine.tokens(text).tolist() for text in self.said]
        for t in trajectories:
            for turn in t.turns:
                assert t.token_ids[turn.start : turn.end].tolist() in wanted, (
                    "as sampled, one token a character"
                )
        return trajectories, summary


def responses(items, **more):
    return {
        "model": "policy",
        "input": items,
        "tools": CODEX_TOOLS,
        "parallel_tool_calls": True,
        "store": False,
        **more,
    }


def test_codex_gets_its_tools_and_its_calls_under_their_own_names(make_gateway):
    turns = [
        call("multi_agent_v1__spawn_agent", {"cmd": "look"}),
        call("apply_patch", {"input": "*** Begin"}),
        call("local_shell", {"command": ["ls"]}),
        call("tool_search", {"cmd": "notes"}),
        call("mcp__notes__add_note", {"text": "x"}),
        "Done.",
    ]
    found = {
        "type": "namespace",
        "name": "mcp__notes",
        "tools": [{"type": "function", "name": "add_note", "parameters": {"type": "object"}}],
    }

    async def scenario():
        asked = Asked(make_gateway, *turns)
        await asked.open()
        items, seen = [{"type": "message", **USER}], []
        for number in range(len(turns)):
            answer = await asked.post("/v1/responses", responses(items), CODEX)
            (item,) = answer["output"]
            seen.append({k: v for k, v in item.items() if k not in ("id", "call_id", "status", "content")})
            output = {
                "type": "function_call_output",
                "call_id": item.get("call_id"),
                "output": f"result {number}",
            }
            if item["type"] == "custom_tool_call":
                output["type"] = "custom_tool_call_output"
            if item["type"] == "tool_search_call":
                output = {"type": "tool_search_output", "call_id": item["call_id"], "tools": [found]}
            items += [item, output]
        return asked, seen, *await asked.finish()

    asked, seen, trajectories, summary = asyncio.run(scenario())
    assert seen == [
        {
            "type": "function_call",
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": '{"cmd": "look"}',
        },
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin"},
        {"type": "local_shell_call", "action": {"env": {}, "type": "exec", "command": ["ls"]}},
        {"type": "tool_search_call", "execution": "client", "arguments": {"cmd": "notes"}},
        {
            "type": "function_call",
            "name": "add_note",
            "namespace": "mcp__notes",
            "arguments": '{"text": "x"}',
        },
        {"type": "message", "role": "assistant"},
    ]
    assert [len(t.turns) for t in trajectories] == [6], "one conversation"
    assert summary["counters"]["ignored: tool web_search"] == 6
    assert summary["counters"]["ignored of codex_exec/0.171.0: tool image_generation"] == 6
    for shown in (
        "exec_command",
        "multi_agent_v1__spawn_agent",
        "apply_patch",
        "local_shell",
    ):
        assert shown in asked.read(0)
    assert "web_search" not in asked.read(0)
    assert "mcp__notes__add_note" in asked.read(4)


def test_a_stream_of_codex_carries_calls_of_each_kind(make_gateway):
    async def scenario(text):
        asked = Asked(make_gateway, text)
        await asked.open()
        return await asked.post("/v1/responses", responses([USER], stream=True), CODEX)

    events = asyncio.run(scenario(call("apply_patch", {"input": "*** Begin"})))
    kinds = [event["type"] for event in events]
    assert "response.custom_tool_call_input.delta" in kinds and kinds[-1] == "response.completed"
    done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert (done["type"], done["input"]) == ("custom_tool_call", "*** Begin")
    events = asyncio.run(scenario(call("multi_agent_v1__spawn_agent", {"cmd": "x"})))
    done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert (done["namespace"], done["name"]) == ("multi_agent_v1", "spawn_agent")


@pytest.mark.parametrize("template", [STRICT, ALTERNATING])
def test_several_messages_of_developers_and_users_are_read_under_a_strict_template(make_gateway, template):
    async def scenario():
        asked = Asked(make_gateway, "One.", "Two.", template=template)
        await asked.open()
        texts = [{"type": "input_text", "text": "skills"}, {"type": "input_text", "text": "permissions"}]
        items = [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "agent"}]},
            {"type": "message", "role": "developer", "content": texts},
            {"type": "message", "role": "user", "content": "environment"},
            {"type": "message", **USER},
        ]
        body = {"input": items}
        first = await asked.post("/v1/responses", body)
        items += [*first["output"], {"role": "system", "content": "calc.py has changed"}, USER]
        await asked.post("/v1/responses", body)
        return asked, *await asked.finish()

    asked, trajectories, _ = asyncio.run(scenario())
    assert [len(t.turns) for t in trajectories] == [2]
    read = asked.read()
    for text in (
        "agent",
        "skills\npermissions",
        "environment",
        "Fix calc.py.",
        "One.",
        "calc.py has changed",
    ):
        assert read.count(text) >= 1
    assert read.count("<|im_start|>system") == (1 if template == STRICT else 0)


def test_claude_codes_messages_of_role_system_are_read(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, "Yes.")
        await asked.open()
        tool = {"name": "Bash", "input_schema": SHELL, "cache_control": {"type": "ephemeral"}, "strict": True}
        body = {
            "model": "claude-opus-4-8",
            "max_tokens": 64_000,
            "system": [{"type": "text", "text": "You fix.", "cache_control": {"type": "ephemeral"}}],
            "messages": [USER, {"role": "system", "content": [{"type": "text", "text": "Agent types: all"}]}],
            "tools": [
                tool,
                {"type": "web_search_20250305", "name": "web_search"},
                {"type": "bash_20250124", "name": "bash"},
            ],
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": []},
            "output_config": {"effort": "high"},
        }
        await asked.post(
            "/v1/messages?beta=true", body, {"user-agent": "claude-cli/2.1.197 (external, sdk-cli)"}
        )
        counted = await asked.post("/v1/messages/count_tokens", body)
        return asked, counted, *await asked.finish()

    asked, counted, _, summary = asyncio.run(scenario())
    assert (
        "Agent types: all" in asked.read()
        and "You fix." in asked.read()
        and "bash(command,restart)" in asked.read()
    )
    assert counted["input_tokens"] == len(asked.gateway.engine.requests[0].token_ids)
    assert summary["counters"]["ignored of claude-cli/2.1.197: tool web_search_20250305"] == 1


SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/v1/chat/completions",
            {"messages": [USER], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [USER],
                "tools": [{"type": "function", "function": {"name": "run", "parameters": SHELL}}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "R", "schema": SCHEMA}},
            },
            "response_format",
        ),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "text.format",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [USER],
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            },
            "output_config.format",
        ),
    ],
)
def test_a_wish_for_json_is_sampled_plainly_and_counted_or_refused_by_key(make_gateway, path, body, field):
    async def scenario():
        asked = Asked(make_gateway, "free")
        await asked.open()
        await asked.post(path, body)
        strict = Asked(make_gateway, "free", response_format="refuse")
        await strict.open()
        async with strict.gateway.http(strict.episode.key) as http:
            refused = await http.post(path, json=body)
        return asked.gateway.engine.requests[0], *await asked.finish(), refused

    request, trajectories, summary, refused = asyncio.run(scenario())
    assert request.decoding is None and len(trajectories) == 1
    assert summary["counters"][f"ignored: {field}"] == 1
    assert (refused.status_code, "not served to an episode" in refused.text) == (400, True)


def test_an_item_that_is_referred_to_is_the_one_that_was_answered(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, f"Step 1.{call('exec_command', {'cmd': 'ls'})}", "Done.")
        await asked.open()
        first = await asked.post("/v1/responses", responses([USER]))
        text, made = first["output"]
        references = [{"type": "item_reference", "id": one} for one in (text["id"], "rs_of_another_server")]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "calc.py"}
        await asked.post("/v1/responses", responses([USER, *references, made, result]))
        return await asked.finish()

    trajectories, summary = asyncio.run(scenario())
    assert [len(t.turns) for t in trajectories] == [2], "the turn is found again"
    assert summary["counters"]["ignored: unknown item_reference"] == 1


def test_a_turn_whose_calls_stand_before_its_text_is_one_turn(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, f"Step 1.{call('exec_command', {'cmd': 'ls'})}", "Done.")
        await asked.open()
        first = await asked.post("/v1/responses", responses([USER]))
        text, made = first["output"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "calc.py"}
        await asked.post("/v1/responses", responses([USER, made, text, result]))
        return await asked.finish()

    assert [len(t.turns) for t in asyncio.run(scenario())[0]] == [2]


def test_a_client_that_drops_the_text_of_a_turn_with_calls_continues_it(make_gateway):
    tools = [{"type": "function", "function": {"name": "run", "parameters": SHELL}}]

    async def scenario():
        asked = Asked(
            make_gateway,
            f"Step 1.{call('run', {'cmd': 'ls'})}",
            f"Step 2.{call('run', {'cmd': 'ls'})}",
            "Done.",
        )
        await asked.open()
        messages = [USER]
        for _ in range(3):
            answer = await asked.post("/v1/chat/completions", {"messages": messages, "tools": tools})
            message = answer["choices"][0]["message"]
            if made := message.get("tool_calls"):
                result = {"role": "tool", "tool_call_id": made[0]["id"], "content": "calc.py"}
                messages += [{"role": "assistant", "content": None, "tool_calls": made}, result]
        return await asked.finish()

    assert [len(t.turns) for t in asyncio.run(scenario())[0]] == [3]


def test_a_picture_under_a_model_of_text_becomes_a_text_that_says_so(make_gateway):
    shown = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": PICTURE}}, {"type": "text", "text": "What?"}]}]}),
        ("/v1/responses", {"input": [USER, {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_image", "image_url": PICTURE, "detail": "high"}]}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": {}}]}]}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [
            {"type": "document", "source": {}}, {"type": "text", "text": "x"}]}]}),
    ]  # fmt: skip

    async def scenario():
        read = []
        for path, body in shown:
            asked = Asked(make_gateway, "ok")
            await asked.open()
            await asked.post(path, body)
            read.append((asked.read(), asked.episode.counters["ignored: image"]))
        return read

    *pictures, document = asyncio.run(scenario())
    assert all("[image: this model reads text]" in text and count == 1 for text, count in pictures)
    assert "[document: this model reads text]" in document[0]


@pytest.mark.parametrize("arguments", ["", None, "null", "{}", {}])
def test_calls_without_arguments_come_back_in_any_form(make_gateway, arguments):
    tools = [{"type": "function", "function": {"name": "status"}}]

    async def scenario():
        asked = Asked(make_gateway, call("status", {}), "Done.")
        await asked.open()
        first = await asked.post("/v1/chat/completions", {"messages": [USER], "tools": tools})
        message = first["choices"][0]["message"]
        message["tool_calls"][0]["function"]["arguments"] = arguments
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "clean"}
        await asked.post("/v1/chat/completions", {"messages": [USER, message, result], "tools": tools})
        return await asked.finish()

    assert [len(t.turns) for t in asyncio.run(scenario())[0]] == [2]


BEGUN = {"role": "assistant", "content": "1. Ann\n2."}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/messages", {"max_tokens": 50}),
        ("/v1/chat/completions", {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
def test_a_begun_answer_goes_on_where_it_ends_and_is_one_turn_of_the_conversation(make_gateway, path, more):
    async def scenario():
        asked = Asked(make_gateway, "1. Ann\n2. Bob", "Good.")
        await asked.open()
        first = await asked.post(path, {"messages": [USER, BEGUN], **more})
        text = (
            first["content"][0]["text"]
            if path == "/v1/messages"
            else first["choices"][0]["message"]["content"]
        )
        said = {"role": "assistant", "content": BEGUN["content"] + text}
        await asked.post(path, {"messages": [USER, said, USER], "max_tokens": 50})
        return asked, text, *await asked.gateway.finish(asked.episode)

    asked, text, trajectories, summary = asyncio.run(scenario())
    assert asked.read(0).endswith("<|im_start|>assistant\n1. Ann\n2.")
    assert text == " Bob"
    assert [len(t.turns) for t in trajectories] == [2]
    turn = trajectories[0].turns[0]
    sampled = trajectories[0].token_ids[turn.start : turn.end].tolist()
    assert sampled == asked.gateway.engine.tokens(" Bob").tolist(), "what the client wrote is context"
    assert summary["counters"]["retokenized_tokens"] == 0


def test_a_turn_that_was_cut_goes_on_in_its_own_tokens(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, "one two three four")
        await asked.open()
        path, more = "/v1/chat/completions", {"continue_final_message": True}
        first = await asked.post(path, {"messages": [USER], "max_tokens": 7})
        text = first["choices"][0]["message"]["content"]
        cut = {"role": "assistant", "content": text}
        second = await asked.post(path, {"messages": [USER, cut], **more})
        whole = {"role": "assistant", "content": text + second["choices"][0]["message"]["content"]}
        await asked.post(path, {"messages": [USER, whole, USER]})
        return asked, text, whole, *await asked.gateway.finish(asked.episode)

    asked, text, whole, (trajectory,), _ = asyncio.run(scenario())
    assert (text, whole["content"]) == ("one two", "one two three four")
    first, second = trajectory.turns[:2]
    assert first.end == second.start, "nothing stands between"
    sampled = trajectory.token_ids[first.start : second.end].tolist()
    assert sampled == asked.gateway.engine.tokens("one two three four").tolist()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"messages": [USER], "continue_final_message": True},
            "continue_final_message: the last message must be",
        ),
        (
            {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": True},
            "cannot be combined with add_generation_prompt",
        ),
        (
            {"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs.chat_template: is",
        ),
        (
            {"messages": [USER], "chat_template_kwargs": {"a": {"b": 1}}},
            "chat_template_kwargs.a: must be a number",
        ),
        ({"messages": [USER], "chat_template_kwargs": 3}, "chat_template_kwargs: must be an object"),
    ],
)
def test_what_cannot_be_continued_or_set_is_refused(make_gateway, body, message):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        async with gateway.http(episode.key) as http:
            return await http.post("/v1/chat/completions", json=body)

    answer = asyncio.run(scenario())
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text


def test_variables_of_the_template_that_a_client_gives_are_heeded(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, "yes", template=THINKS)
        await asked.open()
        body = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}
        await asked.post("/v1/chat/completions", body)
        await asked.post("/v1/chat/completions", {"messages": [USER]})
        return asked.read(0), asked.read(1)

    off, on = asyncio.run(scenario())
    assert off.endswith("assistant\n<think>\n\n</think>\n\n") and on.endswith("assistant\n")


async def slow_answer(gateway, path, body):
    """What a client gets whose turn takes longer than three pings."""
    plain = gateway.engine.generate

    async def generate(request):
        await asyncio.sleep(0.4)
        return await plain(request)

    gateway.engine.generate = generate
    episode = await gateway.open()
    async with gateway.http(episode.key) as http:
        return await http.post(path, json=body)


@pytest.mark.parametrize(
    ("path", "body", "sign"),
    [
        ("/v1/chat/completions", {"messages": [USER]}, ": still sampling\n\n"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 40}, ": still sampling\n\n"),
        ("/v1/messages", {"messages": [USER], "max_tokens": 40}, 'event: ping\ndata: {"type":"ping"}'),
        ("/v1/responses", {"input": "x"}, "event: response.in_progress"),
    ],
)
def test_bytes_flow_while_a_turn_is_sampled(make_gateway, monkeypatch, path, body, sign):
    monkeypatch.setattr("asyncrl.extensions.agents.gateway.api.PING_S", 0.1)
    gateway = make_gateway(lambda prompt: "yes")
    gateway.engine.max_model_len = CONTEXT
    streamed = asyncio.run(slow_answer(gateway, path, {**body, "stream": True})).text
    assert streamed.count(sign) >= 2
    whole = asyncio.run(slow_answer(gateway, path, body))
    assert whole.text.startswith(" ") and json.loads(whole.text)["model"]


def test_a_sub_agent_is_known_by_its_programs_headers(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, call("exec_command", {"cmd": "spawn"}), "found", "Done.")
        await asked.open()
        first = await asked.post("/v1/responses", responses([USER]), CODEX)
        child = {
            **CODEX,
            "thread-id": "child",
            "x-codex-parent-thread-id": "main",
            "x-openai-subagent": "review",
        }
        await asked.post("/v1/responses", responses([{"role": "user", "content": "Look."}]), child)
        (made,) = first["output"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "found"}
        await asked.post("/v1/responses", responses([USER, made, result]), CODEX)
        return await asked.finish()

    (main, child), _ = asyncio.run(scenario())
    assert [len(main.turns), len(child.turns)] == [2, 1]
    assert "agent" not in main.info
    assert (child.info["agent"], child.info["call_branch"], child.info["call_turn"]) == ("review", 0, 0)


def test_titles_are_recorded_and_neither_trained_nor_the_first_branch(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, "A title", call("exec_command", {"cmd": "ls"}), "Done.")
        await asked.open()
        await asked.post("/v1/responses", {"input": "Give a title.", "instructions": "Titles."}, CODEX)
        first = await asked.post("/v1/responses", responses([USER]), CODEX)
        (made,) = first["output"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "calc.py"}
        await asked.post("/v1/responses", responses([USER, made, result]), CODEX)
        return await asked.finish(reward=1.0)

    (main, title), _ = asyncio.run(scenario())
    assert (len(main.turns), main.info["branch"], main.num_sampled > 0) == (2, 0, True)
    assert (title.info["housekeeping"], title.num_sampled, title.turns, title.usable) == (True, 0, (), False)
    assert "A title" in title.conversation


def test_a_harness_names_headers_and_the_words_of_housekeeping_with_tools(make_gateway):
    async def scenario():
        headers = {"thread": "X-Mine", "caller": "X-From", "agent": "X-Who"}
        words = ["You invent titles"]
        asked = Asked(make_gateway, "Title", "found", "Done.", headers=headers, housekeeping=words)
        await asked.open()
        tools = {
            "tools": [{"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}]
        }
        await asked.post("/v1/responses", {"input": "Hi.", "instructions": "You invent titles.", **tools}, {})
        child = {"x-mine": "c", "x-from": "m", "x-who": "helper"}
        await asked.post("/v1/responses", {"input": "Look.", **tools}, child)
        await asked.post("/v1/responses", {"input": "Repair it.", **tools}, {"x-mine": "m"})
        return await asked.finish(reward=1.0)

    (main, helper, title), _ = asyncio.run(scenario())
    assert "Repair it." in main.conversation and main.num_sampled
    assert (helper.info["agent"], helper.num_sampled > 0) == ("helper", True)
    assert (title.info["housekeeping"], title.num_sampled) == (True, 0)


def test_an_episode_gives_so_many_trajectories_and_no_more(make_gateway):
    async def scenario():
        asked = Asked(make_gateway, "yes", max_trajectories=3)
        await asked.open()
        for number in range(6):
            await asked.post(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": f"compacted {number}"}]}
            )
        return await asked.finish()

    trajectories, summary = asyncio.run(scenario())
    texts = [json.loads(t.conversation)[0]["content"] for t in trajectories]
    assert texts == ["compacted 0", "compacted 4", "compacted 5"]
    assert summary["counters"]["dropped_trajectories"] == 3


def test_a_last_turn_that_the_run_cut_is_truncated_and_one_that_went_on_is_not(make_gateway):
    async def scenario(answers, **options):
        asked = Asked(make_gateway, "one two three", max_tokens_per_turn=5)
        await asked.open()
        for number in range(answers):
            asked.turns = ["one two three" if number == 0 else "yes"]
            await asked.post(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": f"{number}"}], **options}
            )
        return await asked.gateway.finish(asked.episode)

    (cut,), summary = asyncio.run(scenario(1))
    assert (cut.status, cut.error, summary["cut"]) == (
        Status.TRUNCATED,
        "max_tokens_per_turn",
        "max_tokens_per_turn",
    )
    assert summary["counters"]["cut_turns"] == 1
    (first, second), summary = asyncio.run(scenario(2))
    assert (first.status, second.status, summary["cut"]) == (Status.TRUNCATED, Status.FINISHED, "")
    (own,), _ = asyncio.run(scenario(1, max_tokens=3))
    assert own.status is Status.FINISHED, "the client's own limit is its choice"


def test_an_agent_that_recovers_from_an_overflow_is_not_truncated(make_gateway):
    long = {"role": "user", "content": "x" * 600}

    async def scenario(recovers):
        asked = Asked(make_gateway, "yes", max_tokens=300)
        await asked.open()
        await asked.post("/v1/chat/completions", {"messages": [USER]})
        async with asked.gateway.http(asked.episode.key) as http:
            refused = await http.post("/v1/chat/completions", json={"messages": [USER, long]})
        if recovers:
            await asked.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "short"}]})
        return refused, *await asked.finish()

    refused, trajectories, _ = asyncio.run(scenario(True))
    assert "context_length_exceeded" in refused.text
    assert [t.status for t in trajectories] == [Status.FINISHED] * 2
    _, (only,), _ = asyncio.run(scenario(False))
    assert (only.status, only.error) == (Status.TRUNCATED, "max_tokens")


def test_names_that_two_tools_would_share_stay_apart():
    tools = read_responses_tools(
        [
            {"type": "function", "name": "a__b", "parameters": None},
            {
                "type": "namespace",
                "name": "a",
                "tools": [{"type": "function", "name": "b", "parameters": None}],
            },
        ]
    )
    assert [one["function"]["name"] for one in tools.functions] == ["a__b", "a__b_"]
    assert (tools.of("a__b").namespace, tools.of("a__b_").namespace, tools.flat("b", "a")) == (
        "",
        "a",
        "a__b_",
    )


def test_the_grammar_of_a_custom_tool_is_told_in_its_description():
    tools = read_responses_tools(CODEX_TOOLS)
    patch = next(t["function"] for t in tools.functions if t["function"]["name"] == "apply_patch")
    assert patch["description"] == "Patches.\n\nThe input must follow this grammar (lark):\nstart: LINE+"


def test_tools_of_vendors_are_left_out_and_counted_in_every_dialect():
    chat = read_chat_tools([{"type": "custom", "custom": {"name": "sql"}}, {"type": "web_search"}])
    claude = read_messages_tools(
        [{"type": "code_execution_20250825", "name": "code_execution"}, {"name": "f"}]
    )
    assert ([t["function"]["name"] for t in chat.functions], chat.dropped) == (["sql"], ["tool web_search"])
    assert ([t["function"]["name"] for t in claude.functions], claude.dropped) == (
        ["f"],
        ["tool code_execution_20250825"],
    )
    assert np.all(
        [t["function"]["parameters"]["type"] == "object" for t in (*chat.functions, *claude.functions)]
    )
