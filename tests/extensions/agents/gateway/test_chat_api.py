"""The routes of OpenAI, through the real `openai` client: sampled tokens are kept, trees are trained once."""

import asyncio

import numpy as np
import pytest
from PIL import Image

from asyncrl.chat.tool_formats import load_format
from asyncrl.data.transcript import read_transcript
from asyncrl.errors import InfrastructureError
from asyncrl.images import png_part
from asyncrl.types import FailureClass, Status
from tests.credentials import TOKEN
from tests.packages import ImportedWhenUsed

openai = ImportedWhenUsed("openai")

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
FUNCTION = {
    "name": "add",
    "description": "adds",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
USER = {"role": "user", "content": "1+2"}
PICTURE = {"role": "user", "content": [png_part(Image.new("RGB", (16, 16)))]}
ELSEWHERE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}


def calls_then_answers(prompt):
    return "three" if "<|im_start|>tool\n" in prompt else f"well {CALL}"


async def ask(client, messages, **options):
    return await client.chat.completions.create(model="any", messages=messages, **options)


def said(answer):
    return answer.choices[0].message.model_dump(exclude_none=True)


def sampled_of(trajectory):
    return [trajectory.token_ids[turn.start : turn.end].tolist() for turn in trajectory.turns]


def test_a_tool_conversation_is_one_trajectory_of_exactly_the_tokens_the_engine_read_and_sampled(
    make_gateway,
):
    async def scenario():
        gateway = make_gateway(calls_then_answers)
        episode = await gateway.open(episode_index=3)
        client = gateway.openai(episode)
        first = await ask(client, [USER], tools=TOOLS)
        call = first.choices[0].message.tool_calls[0]
        assert (first.choices[0].finish_reason, call.function.name) == ("tool_calls", "add")
        assert call.function.arguments == '{"a": 1, "b": 2}'
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        second = await ask(client, [USER, said(first), result], tools=TOOLS)
        assert second.choices[0].message.content == "three"
        return gateway, await gateway.finish(episode, reward=1.0, success=True)

    gateway, (trajectories, summary) = asyncio.run(scenario())
    (trajectory,) = trajectories
    before, after = (request.token_ids for request in gateway.engine.requests)
    engine = gateway.engine
    assert sampled_of(trajectory) == [engine.tokens(f"well {CALL}").tolist(), engine.tokens("three").tolist()]
    assert trajectory.token_ids[: len(after)].tolist() == after.tolist()
    assert after[: len(before)].tolist() == before.tolist()
    assert trajectory.loss_mask.sum() == sum(len(ids) for ids in sampled_of(trajectory))
    assert set(trajectory.versions[trajectory.loss_mask].tolist()) == {7}
    assert (trajectory.reward, trajectory.success, trajectory.episode_index) == (1.0, True, 3)
    assert summary["counters"]["retokenized_tokens"] == 0
    assert summary["branches"] == 1


def test_one_byte_tokens_are_not_what_the_tokenizer_would_make(make_gateway):
    """Otherwise the test above could not see a turn that was tokenized again."""
    gateway = make_gateway(calls_then_answers)
    text = f"well {CALL}"
    again = gateway.renderer.tokenizer.encode(text, add_special_tokens=False)
    assert len(gateway.engine.tokens(text)) > len(again) + 1


def test_parallel_branches_share_their_prefix_and_train_each_token_once(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: f"after {prompt.count('user')}")
        episode = await gateway.open()
        client = gateway.openai(episode)
        root = said(await ask(client, [USER]))
        branches = [[USER, root, {"role": "user", "content": name}] for name in ("left", "right", "up")]
        await asyncio.gather(*(ask(client, messages) for messages in branches))
        await ask(client, [{"role": "user", "content": "elsewhere"}])
        return gateway, await gateway.finish(episode, reward=2.0)

    gateway, (trajectories, summary) = asyncio.run(scenario())
    assert [len(t.turns) for t in trajectories] == [2, 1, 1, 1]
    total = sum(len(gateway.engine.tokens(reply)) for reply in ("after 1", *["after 2"] * 3, "after 1"))
    assert sum(t.num_sampled for t in trajectories) == total == summary["counters"]["sampled_tokens"]
    shared = trajectories[0].turns[0]
    for branch in trajectories[1:3]:
        same = slice(0, shared.end)
        assert branch.token_ids[same].tolist() == trajectories[0].token_ids[same].tolist()
        assert not branch.loss_mask[same].any()
        assert (branch.versions[same] == -1).all()
    assert {t.reward for t in trajectories} == {2.0}


def test_equal_looking_answers_of_parallel_samples_keep_their_own_tokens(make_gateway):
    async def scenario():
        gateway = make_gateway(calls_then_answers)
        episode = await gateway.open()
        client = gateway.openai(episode)
        answer = await ask(client, [USER], tools=TOOLS, n=2)
        for choice in answer.choices:
            call = choice.message.tool_calls[0]
            result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
            await ask(client, [USER, choice.message.model_dump(exclude_none=True), result], tools=TOOLS)
        return await gateway.finish(episode)

    trajectories, summary = asyncio.run(scenario())
    assert [len(t.turns) for t in trajectories] == [2, 2]
    assert summary["counters"]["calls"] == 4


def test_a_rewritten_history_starts_a_new_branch_and_is_counted(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        client = gateway.openai(episode)
        first = said(await ask(client, [USER]))
        await ask(client, [{"role": "user", "content": "summary"}, first, USER])
        return await gateway.finish(episode)

    trajectories, summary = asyncio.run(scenario())
    assert [len(t.turns) for t in trajectories] == [1, 1]
    assert summary["counters"]["rendered_turns"] == 1


async def branched(client):
    """Ask, then go on in two ways; return the first answer and that to the first way."""
    first = await ask(client, [USER])
    more = [USER, said(first), {"role": "user", "content": "a"}]
    second = await ask(client, more)
    await ask(client, [*more[:2], {"role": "user", "content": "b"}])
    return first, second


def test_rewards_of_calls_count_on_every_path_through_them(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        first, second = await branched(gateway.openai(episode))
        async with gateway.http(episode.reward_key) as http:
            answer = await http.post("/asyncrl/v1/reward", json={"reward": 0.5, "call_id": first.id})
            assert (answer.status_code, answer.json()) == (200, {"reward": 0.5})
        async with gateway.http(TOKEN) as http:
            route = f"/asyncrl/v1/episodes/{episode.id}/reward"
            await http.post(route, json={"reward": 0.25, "call_id": second.id, "components": {"form": 1.0}})
            refused = await http.post(route, json={"reward": 1, "call_id": "no"})
            assert (refused.status_code, "no call 'no'" in refused.text) == (400, True)
        return await gateway.finish(episode, reward=1.0)

    trajectories, _ = asyncio.run(scenario())
    assert [t.reward for t in trajectories] == [1.75, 1.5]
    assert [[turn.reward for turn in t.turns] for t in trajectories] == [[0.5, 0.25], [0.0]]
    assert [t.components for t in trajectories] == [{"form": 1.0}, {}], "the second branch lacks the call"


def test_the_key_an_agent_calls_with_cannot_reward_it(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        await ask(gateway.openai(episode), [USER])
        answers = []
        for key in (episode.key, "reward-none", "secret"):
            async with gateway.http(key) as http:
                answers.append(await http.post("/asyncrl/v1/reward", json={"reward": 5.0}))
        async with gateway.http(episode.reward_key) as http:
            models = await http.get("/v1/models")
        return answers, models.status_code, await gateway.finish(episode, reward=1.0)

    answers, models, (trajectories, _) = asyncio.run(scenario())
    assert [answer.status_code for answer in answers] == [403, 401, 401]
    assert "use the episode's reward_key" in answers[0].text
    assert models == 401
    assert trajectories[0].reward == 1.0


def test_branches_keep_their_conversations_with_the_turns_that_are_theirs(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        _, second = await branched(gateway.openai(episode))
        async with gateway.http(TOKEN) as http:
            route = f"/asyncrl/v1/episodes/{episode.id}/reward"
            await http.post(route, json={"reward": 0.25, "call_id": second.id})
        return await gateway.finish(episode)

    trajectories, _ = asyncio.run(scenario())
    kept = [read_transcript(t.conversation, [turn.reward for turn in t.turns]) for t in trajectories]
    yes = ("assistant", "yes")
    asked = [
        ("user", USER["content"], None, None),
        (*yes, 0, 0.0),
        ("user", "a", None, None),
        (*yes, 1, 0.25),
    ]
    shared = [
        ("user", USER["content"], None, None),
        (*yes, None, None),
        ("user", "b", None, None),
        (*yes, 0, 0.0),
    ]
    assert [[(m["role"], m["content"], m["turn"], m["reward"]) for m in k] for k in kept] == [asked, shared]


def test_streamed_text_is_the_whole_text_and_is_recorded(make_gateway):
    text = "a long answer " * 6

    async def scenario():
        gateway = make_gateway(lambda prompt: text)
        episode = await gateway.open()
        stream = await ask(
            gateway.openai(episode), [USER], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        return gateway, chunks, await gateway.finish(episode)

    gateway, chunks, (trajectories, _) = asyncio.run(scenario())
    parts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(parts) == text
    assert sum(map(bool, parts)) >= 3
    assert chunks[-1].usage.completion_tokens == len(gateway.engine.tokens(text))
    assert sampled_of(trajectories[0]) == [gateway.engine.tokens(text).tolist()]


def test_a_stop_string_ends_the_text_before_it_and_the_tokens_after_it(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "think. Observation: made up")
        episode = await gateway.open()
        client = gateway.openai(episode)
        answer = await ask(client, [USER], stop=["Observation:"])
        again = [USER, said(answer), {"role": "user", "content": "real"}]
        await ask(client, again, stop="Observation:")
        return gateway, answer, await gateway.finish(episode)

    gateway, answer, (trajectories, _) = asyncio.run(scenario())
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("think. ", "stop")
    stopped = gateway.engine.tokens("think. Observation:")[:-1].tolist()
    assert sampled_of(trajectories[0]) == [stopped, stopped]


def test_a_turn_cut_by_its_limit_is_ended_when_the_conversation_continues(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "abcdefgh")
        episode = await gateway.open()
        client = gateway.openai(episode)
        answer = await ask(client, [USER], max_tokens=3)
        await ask(client, [USER, said(answer), USER], max_completion_tokens=3)
        return gateway, answer, await gateway.finish(episode)

    gateway, answer, (trajectories, _) = asyncio.run(scenario())
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("abc", "length")
    trajectory = trajectories[0]
    assert sampled_of(trajectory) == [gateway.engine.tokens("abc")[:-1].tolist()] * 2
    assert trajectory.token_ids[trajectory.turns[0].end] == gateway.renderer.stop_token_ids[0]


def test_a_plain_completion_continues_its_own_text_in_the_sampled_tokens(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "north and on")
        episode = await gateway.open()
        client = gateway.openai(episode)
        first = await client.completions.create(model="any", prompt="goal ", max_tokens=5, logprobs=1)
        longer = f"goal {first.choices[0].text} then "
        await client.completions.create(model="any", prompt=longer, max_tokens=4)
        return gateway, first, await gateway.finish(episode)

    gateway, first, (trajectories, _) = asyncio.run(scenario())
    assert first.choices[0].text == "north"
    assert first.choices[0].logprobs.token_logprobs == [-k / 64 for k in range(1, 6)]
    (trajectory,) = trajectories
    assert sampled_of(trajectory) == [
        gateway.engine.tokens("north")[:-1].tolist(),
        gateway.engine.tokens("nort")[:-1].tolist(),
    ]


def test_a_prompt_of_token_ids_continues_what_it_begins_with(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        client = gateway.openai(episode)
        await client.completions.create(model="any", prompt=[9, 10, 11], max_tokens=8)
        whole = np.concatenate([[9, 10, 11], gateway.engine.tokens("yes")]).tolist()
        await client.completions.create(model="any", prompt=[*whole, 12], max_tokens=8)
        return await gateway.finish(episode)

    trajectories, _ = asyncio.run(scenario())
    assert [len(t.turns) for t in trajectories] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"messages": []}, "messages: must be a list of 1 to 8192"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\].role: must be one of"),
        ({"messages": [USER], "n": 0}, "n: must be a whole number from 1"),
        ({"messages": [USER], "temperature": -1}, "temperature: must be a number from 0"),
        ({"messages": [USER], "stop": [1]}, "stop: must be a string or a list"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "only text parts"),
        ({"messages": [USER], "response_format": {"type": "xml"}}, "response_format.type: must be text"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, r"tools\[0\]: must be"),
    ],
)
def test_a_wrong_request_is_refused_by_field(make_gateway, options, message):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        client = gateway.openai(await gateway.open())
        await client.chat.completions.create(model="any", **options)

    with pytest.raises(openai.BadRequestError, match=message):
        asyncio.run(scenario())


def test_limits_refuse_further_calls_and_truncate_the_episode(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        counted = await gateway.open(max_calls=1)
        await ask(gateway.openai(counted), [USER])
        with pytest.raises(openai.BadRequestError, match="may make 1 calls"):
            await ask(gateway.openai(counted), [USER])
        short = await gateway.open(max_tokens=20)
        with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
            await ask(gateway.openai(short), [{"role": "user", "content": "x" * 30}])
        return [(await gateway.finish(e))[0][0] for e in (counted, short)]

    counted, short = asyncio.run(scenario())
    assert (counted.status, counted.error) == (Status.TRUNCATED, "max_calls")
    assert (short.status, short.error, short.num_tokens) == (Status.TRUNCATED, "max_tokens", 0)


def test_a_key_opens_one_episode_until_its_end(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        client = gateway.openai(episode)
        await ask(client, [USER])
        await gateway.finish(episode, reward=1.0)
        with pytest.raises(openai.PermissionDeniedError, match="has ended"):
            await ask(client, [USER])
        client.api_key = "ep-other"
        with pytest.raises(openai.AuthenticationError):
            await ask(client, [USER])
        async with gateway.http() as http:
            assert (await http.post("/asyncrl/v1/episodes", json={"task_id": "t"})).status_code == 401
            assert (await http.get("/v1/models")).status_code == 401
        async with gateway.http(TOKEN) as http:
            again = await http.post(f"/asyncrl/v1/episodes/{episode.id}/finish", json={})
            missing = await http.get("/asyncrl/v1/episodes/none")
            wrong = await http.post("/asyncrl/v1/episodes", json={"task_id": "t", "temprature": 1})
        return again.json(), missing.status_code, wrong

    again, missing, wrong = asyncio.run(scenario())
    assert (len(again["trajectories"]), again["trajectories"][0]["reward"]) == (1, 1.0)
    assert missing == 404
    assert (wrong.status_code, "temprature" in wrong.text) == (400, True)


def test_the_episode_fixes_the_temperature_and_counts_what_it_ignores(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open(temperature=0.7, seed=5)
        client = gateway.openai(episode)
        await ask(client, [USER], temperature=0.0, top_p=0.5)
        free = await gateway.open(temperature=None)
        await ask(gateway.openai(free), [USER], temperature=0.25)
        return gateway.engine.requests, await gateway.finish(episode)

    (fixed, free), (_, summary) = asyncio.run(scenario())
    assert (fixed.temperature, free.temperature) == (0.7, 0.25)
    assert fixed.seed is not None
    counters = summary["counters"]
    assert (counters["ignored: top_p"], counters["ignored: temperature"]) == (1, 1)


def test_an_engine_failure_is_answered_502_and_leaves_no_turn(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        episode = await gateway.open()
        gateway.engine.failure = InfrastructureError("no engine is up")
        with pytest.raises(openai.InternalServerError, match="no engine is up"):
            await ask(gateway.openai(episode), [USER])
        return await gateway.finish(
            episode, status="failed", failure="infrastructure", error="the agent lost its model"
        )

    (trajectory,), summary = asyncio.run(scenario())
    assert (trajectory.status, trajectory.failure) == (Status.FAILED, FailureClass.INFRASTRUCTURE)
    assert (summary["calls"], summary["counters"]["infrastructure_errors"]) == (0, 1)


def test_reasoning_is_a_field_of_its_own_and_may_be_left_out_of_the_next_request(make_gateway):
    def thinks(prompt):
        return f"<think>\nhm\n</think>\n\n{calls_then_answers(prompt)}"

    async def scenario(returned):
        gateway = make_gateway(thinks)
        sampler = gateway.episodes.sampler
        sampler.parse, sampler.split = load_format("hermes", "think", gateway.renderer)
        episode = await gateway.open()
        client = gateway.openai(episode)
        first = await ask(client, [USER], tools=TOOLS)
        message = first.choices[0].message
        assert (message.content, message.reasoning_content) == ("well", "hm")
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
        history = [USER, {k: v for k, v in said(first).items() if k in returned}, result]
        stream = await ask(client, history, tools=TOOLS, stream=True)
        deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) async for chunk in stream]
        assert "".join(d.get("content", "") for d in deltas) == "three"
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "hm"
        # Without tools nothing is a call, and the reasoning is split off all the same.
        plain = await ask(client, [{"role": "user", "content": "again"}])
        assert (plain.choices[0].message.content, plain.choices[0].message.reasoning_content) == (
            f"well {CALL}",
            "hm",
        )
        return gateway, (await gateway.finish(episode, reward=1.0))[0]

    for returned in (
        ("role", "content", "tool_calls"),
        ("role", "content", "tool_calls", "reasoning_content"),
    ):
        gateway, trajectories = asyncio.run(scenario(returned))
        before, after = (request.token_ids.tolist() for request in gateway.engine.requests[:2])
        assert after[: len(before)] == before
        sampled = gateway.engine.tokens(f"<think>\nhm\n</think>\n\nwell {CALL}").tolist()
        assert after[len(before) :][: len(sampled)] == sampled
        assert sampled_of(trajectories[0])[0] == sampled
