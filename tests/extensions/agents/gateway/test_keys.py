"""Keys without an episode: evaluation is served what training cannot be, and nothing is recorded."""

import asyncio
import json

import pytest

from asyncrl.extensions.agents.gateway.open_episodes import NoEpisode
from asyncrl.types import Decoding
from tests.credentials import TOKEN
from tests.packages import ImportedWhenUsed

anthropic = ImportedWhenUsed("anthropic")
openai = ImportedWhenUsed("openai")

USER = {"role": "user", "content": "q"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"name": "answer", "schema": SCHEMA}


def with_key(make_gateway, scenario, reply="yes"):
    """Run `scenario(gateway, key, OpenAI's client)` with a fresh key."""

    async def run():
        gateway = make_gateway(lambda prompt: reply)
        key = await gateway.open_key()
        return await scenario(gateway, key, gateway.openai(key))

    return asyncio.run(run())


def test_a_key_without_an_episode_is_served_until_it_is_deleted_and_leaves_nothing(make_gateway):
    async def scenario(gateway, key, client):
        said = {"role": "assistant", "content": "yes"}
        for _ in range(2):
            await client.chat.completions.create(model="m", messages=[USER, said, USER], temperature=0.0)
        await client.responses.create(model="m", input="q")
        (held,) = (e for e in gateway.episodes._keys.values())
        kept = (
            len(held.tree.calls),
            held.responses,
            held.sampled_keys,
            dict(held.contexts),
            len(gateway.episodes),
        )
        async with gateway.http(TOKEN) as http:
            codes = [(await http.delete(f"/asyncrl/v1/keys/{key.id}")).status_code for _ in range(2)]
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=[USER])
        async with gateway.http(key.key) as http:
            refused = (await http.post("/asyncrl/v1/keys")).status_code
        return kept, codes, refused, gateway.engine

    kept, codes, refused, engine = with_key(make_gateway, scenario)
    assert kept == (0, {}, set(), {}, 0)
    assert codes == [200, 404]
    assert refused == 401
    assert [request.temperature for request in engine.requests] == [0.0, 0.0, 1.0]
    assert {request.session for request in engine.requests} == {""}
    assert engine.held == []


def test_a_seed_gives_the_same_answer_each_time(make_gateway):
    async def scenario(gateway, key, client):
        for seed in (3, 3, 4, None):
            await client.chat.completions.create(model="m", messages=[USER], seed=seed)
        return [request.seed for request in gateway.engine.requests]

    first, again, other, none = with_key(make_gateway, scenario)
    assert (first == again, first != other, none) == (True, True, None)


def test_sampling_parameters_reach_the_engine(make_gateway):
    async def scenario(gateway, key, client):
        extra = {"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}
        await client.chat.completions.create(
            model="m",
            messages=[USER],
            top_p=0.9,
            presence_penalty=0.5,
            frequency_penalty=0.25,
            extra_body=extra,
        )
        await client.chat.completions.create(model="m", messages=[USER], top_p=1.0, extra_body={"top_k": -1})
        claude = gateway.anthropic(key)
        body = {"top_p": 0.5, "top_k": 3}
        await claude.messages.create(model="m", max_tokens=9, messages=[USER], extra_body=body)
        with pytest.raises(openai.BadRequestError, match="logit_bias"):
            await client.chat.completions.create(model="m", messages=[USER], logit_bias={"5": 1})
        return [request.decoding for request in gateway.engine.requests]

    assert with_key(make_gateway, scenario) == [
        Decoding(0.9, 20, 0.1, 0.5, 0.25, 1.1), None, Decoding(top_p=0.5, top_k=3),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_json_modes_of_every_api_give_the_engine_a_schema_for_the_whole_turn(make_gateway, stream):
    reply = json.dumps({"a": 5, "b": "x" * 60})

    async def scenario(gateway, key, client):
        chat = client.chat.completions.create
        answer = await chat(
            model="m",
            messages=[USER],
            response_format={"type": "json_schema", "json_schema": NAMED},
            stream=stream,
        )
        if stream:
            text = "".join([c.choices[0].delta.content or "" async for c in answer])
        else:
            text = answer.choices[0].message.content
        await chat(model="m", messages=[USER], response_format={"type": "json_object"}, stream=stream)
        text_format = {"format": {"type": "json_schema", **NAMED}}
        await client.responses.create(model="m", input="q", text=text_format, stream=stream)
        await client.responses.create(model="m", input="q", text={"verbosity": "low"}, stream=stream)
        claude = gateway.anthropic(key)
        config = {"format": {"type": "json_schema", "schema": SCHEMA}}
        await claude.messages.create(
            model="m", max_tokens=99, messages=[USER], output_config=config, stream=stream
        )
        return text, [r.decoding and json.loads(r.decoding.schema) for r in gateway.engine.requests]

    text, schemas = with_key(make_gateway, scenario, reply)
    assert text == reply
    pieces = 3 if stream else 1
    assert schemas == [SCHEMA, {"type": "object"}, SCHEMA, *[None] * pieces, SCHEMA]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": {"type": "grammar"}}, "must be text, json_object or json_schema"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema: must be a JSON schema",
        ),
        (
            {
                "response_format": {"type": "json_object"},
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
            "cannot be combined with tools",
        ),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "from 0 to 20"),
    ],
)
def test_what_no_engine_could_serve_is_refused(make_gateway, options, message):
    async def scenario(gateway, key, client):
        await client.chat.completions.create(model="m", messages=[USER], **options)

    with pytest.raises(openai.BadRequestError, match=message):
        with_key(make_gateway, scenario)


@pytest.mark.parametrize(
    ("route", "options"),
    [
        ("chat", {"logprobs": True, "top_logprobs": 1}),
        ("completions", {"echo": True}),
        ("completions", {"logprobs": 5}),
        ("completions", {"prompt": ["a", "b"]}),
    ],
)
def test_an_episode_is_refused_them_with_the_reason_and_the_way_out(make_gateway, route, options):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        client, claude = gateway.openai(episode), gateway.anthropic(episode)
        call, body = {
            "chat": (client.chat.completions.create, {"messages": [USER]}),
            "completions": (client.completions.create, {"prompt": "q"}),
            "responses": (client.responses.create, {"input": "q"}),
            "messages": (claude.messages.create, {"messages": [USER], "max_tokens": 5}),
        }[route]
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
            await call(model="m", **(body | options))
        return str(caught.value), gateway.engine.requests

    message, requests = asyncio.run(scenario())
    assert "not served to an episode, since" in message
    assert "POST /asyncrl/v1/keys" in message
    assert requests == []


def test_top_logprobs_of_a_chat_are_the_likeliest_tokens_and_as_many_as_asked_for(make_gateway):
    async def scenario(gateway, key, client):
        answer = await client.chat.completions.create(
            model="m", messages=[USER], logprobs=True, top_logprobs=2, max_tokens=2
        )
        return answer.choices[0].logprobs.content

    content = with_key(make_gateway, scenario)
    assert [token.logprob for token in content] == [-1 / 64, -2 / 64]
    assert [[top.logprob for top in token.top_logprobs] for token in content] == [
        [-1 / 64, -1 / 64 - 1], [-2 / 64, -2 / 64 - 1],
    ]  # fmt: skip
    assert [token.top_logprobs[0].token for token in content] == ["y", "e"]


@pytest.mark.parametrize("max_tokens", [1, 0])
def test_several_echoed_prompts_have_the_log_probabilities_of_their_own_tokens(make_gateway, max_tokens):
    """What lm-eval asks of a multiple choice, and reads by position."""
    prompts = [[9, 10, 11], [12, 13]]

    async def scenario(gateway, key, client):
        return await client.completions.create(
            model="m", prompt=prompts, max_tokens=max_tokens, echo=True, logprobs=1, temperature=0.0, n=2
        )

    answer = with_key(make_gateway, scenario)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice, prompt in zip(answer.choices, (prompts[0], prompts[0], *prompts[1:] * 2), strict=True):
        shown = choice.logprobs
        own = [None, *(-i / 64 for i in prompt[1:])]
        assert shown.token_logprobs == own + [-1 / 64] * max_tokens
        assert (
            len(shown.tokens) == len(shown.top_logprobs) == len(shown.text_offset) == len(prompt) + max_tokens
        )
        assert shown.top_logprobs[0] is None
        assert [max(top.values()) for top in shown.top_logprobs[1:]] == (own + [-1 / 64] * max_tokens)[1:]
        assert choice.text.endswith("y") == bool(max_tokens)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 4 * max_tokens)


def test_an_unknown_key_cannot_be_deleted(make_gateway):
    with pytest.raises(NoEpisode):
        make_gateway(lambda prompt: "").episodes.drop_key("none")
