"""Agents behind a gateway process and a real vLLM server: what is exported is what the engine read and sampled.

The engine gets weights of a model that was taught one conversation: asked "6 * 8" it calls a tool, and says what the
tool returned.
"""

import asyncio
import contextlib
import json
import time
import urllib.request
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.config import parse_config
from asyncrl.extensions.agents.gateway.recorded_episode import EpisodeSpec
from asyncrl.extensions.agents.serving.client import GatewayClient
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.services.engine.client import EngineClient
from asyncrl.types import Status
from tests.credentials import AUTHORIZED
from tests.packages import ImportedWhenUsed
from tests.waiting import START_S

anthropic = ImportedWhenUsed("anthropic")
openai = ImportedWhenUsed("openai")

pytestmark = pytest.mark.slow
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "mul", "description": "", "parameters": PARAMETERS}}]
FLAT = [{"type": "function", "name": "mul", "description": "", "parameters": PARAMETERS, "strict": False}]
USER = {"role": "user", "content": "6 * 8"}
CALL = {"type": "function", "id": "call00000", "function": {"name": "mul", "arguments": {"a": 6, "b": 8}}}
RESULT = {"role": "tool", "tool_call_id": "call00000", "content": "48"}


def conversation(renderer):
    """Ids and mask of the conversation to teach."""
    call = renderer.assistant({"role": "assistant", "content": "", "tool_calls": [CALL]}, TOOLS)
    answer = renderer.assistant({"role": "assistant", "content": "48"}, TOOLS)
    parts = [
        (renderer.opening([USER], TOOLS), 0),
        (call, 1),
        (renderer.observation([RESULT], TOOLS), 0),
        (answer, 1),
    ]
    ids = np.concatenate([part for part, _ in parts])
    return torch.tensor(ids)[None].long(), torch.tensor(
        np.concatenate([[m] * len(p) for p, m in parts])
    ).bool()


@pytest.fixture(scope="module")
def taught(tiny_model, renderer):
    """A model that says the conversation by heart."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    ids, mask = conversation(renderer)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(200):
        logp = torch.log_softmax(model(ids).logits[0, :-1], -1)
        loss = -logp.gather(1, ids[0, 1:, None])[mask[1:]].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01
    return model.eval()


@pytest.fixture(scope="module")
def gateway(taught, tiny_model, engine_url, publish_weights, tmp_path_factory):
    """A gateway process over the engine with the taught weights: its address and their version."""
    folder = tmp_path_factory.mktemp("gateway")

    version = publish_weights(taught)
    config = parse_config({"model": {"path": tiny_model}, "env": {"name": "gridworld"}})
    (folder / "config.json").write_text(config.model_dump_json())
    process_group = ProcessGroup(folder)
    try:
        argv = ["serve", "gateway", "--folder", str(folder), "--model", tiny_model, "--engines", engine_url]
        yield SimpleNamespace(
            url=process_group.wait_ready(process_group.start("gateway", argv), START_S), version=version
        )
    finally:
        process_group.stop()


def play(gateway, agent, **spec):
    """Open an episode, run `agent(key)` in a thread, finish; return the trajectories and the summary."""

    async def run():
        client = GatewayClient(gateway.url)
        try:
            episode = await client.open(EpisodeSpec(task_id="t", **{"seed": 1, "temperature": 0.2, **spec}))
            await asyncio.to_thread(agent, episode.key)
            return await client.finish(episode.id, reward=1.0)
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.fixture
def check_the_taught_episode(gateway, taught, check_agreement):
    """`check_the_taught_episode(result)`: one exact trajectory of two turns."""

    def check(result):
        (trajectory,), summary = result
        assert len(trajectory.turns) == 2
        assert (trajectory.reward, trajectory.status) == (1.0, Status.FINISHED)
        assert summary["counters"]["retokenized_tokens"] == 0
        check_agreement(taught, trajectory, 0.2, gateway.version)

    return check


def chat_agent(url, stream=False):
    """An agent of the openai package's chat completions."""

    def ask(client, messages):
        options = {"model": "m", "messages": messages, "tools": TOOLS}
        if not stream:
            return client.chat.completions.create(**options).choices[0]
        with client.chat.completions.stream(**options) as events:
            return events.get_final_completion().choices[0]

    def agent(key):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
        messages = [USER]
        while (choice := ask(client, messages)).finish_reason == "tool_calls":
            (call,) = choice.message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("mul", {"a": 6, "b": 8})
            said = choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
            messages += [said, {"role": "tool", "tool_call_id": call.id, "content": "48"}]
        assert (choice.message.content, choice.finish_reason) == ("48", "stop")

    return agent


def responses_agent(url, stream=False):
    """An agent of the openai package's responses, which goes on by id when it does not stream."""

    def ask(client, **options):
        options |= {"model": "m", "tools": FLAT}
        if not stream:
            return client.responses.create(**options)
        with client.responses.stream(**options) as events:
            return events.get_final_response()

    def agent(key):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
        first = ask(client, input=[USER])
        (call,) = first.output
        assert (call.type, call.name, json.loads(call.arguments)) == (
            "function_call",
            "mul",
            {"a": 6, "b": 8},
        )
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "48"}
        if stream:
            said = call.model_dump(include={"type", "id", "call_id", "name", "arguments"})
            second = ask(client, input=[USER, said, result])
        else:
            second = ask(client, input=[result], previous_response_id=first.id)
        assert (second.output_text, second.status) == ("48", "completed")

    return agent


def messages_agent(url, stream=False):
    """An agent of the anthropic package."""

    def ask(client, messages):
        tools = [{"name": "mul", "input_schema": PARAMETERS}]
        options = {"model": "m", "max_tokens": 99, "messages": messages, "tools": tools}
        if not stream:
            return client.messages.create(**options)
        with client.messages.stream(**options) as events:
            return events.get_final_message()

    def agent(key):
        client = anthropic.Anthropic(base_url=url, api_key=key)
        first = ask(client, [USER])
        (use,) = first.content
        assert (first.stop_reason, use.name, use.input) == ("tool_use", "mul", {"a": 6, "b": 8})
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "48"}
        said = [use.model_dump(include={"type", "id", "name", "input"})]
        second = ask(
            client, [USER, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        )
        assert (second.content[0].text, second.stop_reason) == ("48", "end_turn")

    return agent


def framework_agent(url, stream=False, api="OpenAIChatCompletionsModel"):
    """An agent of the openai-agents framework."""
    agents = pytest.importorskip("agents")
    if stream and api == "OpenAIChatCompletionsModel" and version("openai-agents").startswith("0.0."):
        pytest.skip(
            "openai-agents 0.0 makes an event of a streamed chat without what openai 3 asks for in it"
        )

    async def run(agent):
        if not stream:
            return await agents.Runner.run(agent, "6 * 8")
        result = agents.Runner.run_streamed(agent, "6 * 8")
        kinds = [
            event.name async for event in result.stream_events() if event.type == "run_item_stream_event"
        ]
        assert kinds == ["tool_called", "tool_output", "message_output_created"]
        return result

    def agent(key):
        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key)

        @agents.function_tool
        def mul(a: int, b: int) -> int:
            return a * b

        model = getattr(agents, api)(model="m", openai_client=client)
        result = asyncio.run(run(agents.Agent(name="a", model=model, tools=[mul])))
        assert result.final_output == "48"

    return agent


def framework_responses_agent(url, stream=False):
    return framework_agent(url, stream, "OpenAIResponsesModel")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "make", [chat_agent, responses_agent, messages_agent, framework_agent, framework_responses_agent]
)
def test_an_agent_of_every_sdk_calls_its_tool_and_answers_in_one_exact_trajectory(
    gateway, check_the_taught_episode, make, stream
):
    check_the_taught_episode(play(gateway, make(gateway.url, stream)))


def test_the_sdks_lead_to_the_same_tokens(gateway):
    ours, theirs = (play(gateway, make(gateway.url)) for make in (messages_agent, chat_agent))
    assert ours[0][0].token_ids.tolist() == theirs[0][0].token_ids.tolist()


def test_the_context_is_as_long_as_the_engine_says(gateway):
    """The gateway was told nothing of the engine's 256 tokens; its own default is 2,048."""

    def agent(key):
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key)
        assert client.models.list().data[0].max_model_len == 256
        with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens") as caught:
            client.completions.create(model="m", prompt=[5] * 256)
        assert caught.value.code == "context_length_exceeded"
        answer = client.completions.create(model="m", prompt=[5] * 255, max_tokens=9)
        assert answer.usage.total_tokens == 256
        claude = anthropic.Anthropic(base_url=gateway.url, api_key=key)
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 255 maximum"):
            claude.messages.create(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "north " * 300}]
            )

    (trajectory,), summary = play(gateway, agent)
    assert (trajectory.num_tokens, summary["limit"]) == (256, "max_tokens")


def test_streamed_pieces_and_stop_strings_agree_with_a_forward_pass_at_temperature_one(
    gateway, taught, check_agreement
):
    def agent(key):
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key)
        messages = [{"role": "user", "content": "goal north east"}]
        for _ in range(2):
            stream = client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=70)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "north"}]
        client.chat.completions.create(model="m", messages=messages[:3], stop=["4"], max_tokens=30)
        client.completions.create(model="m", prompt="goal", max_tokens=40, n=3)

    trajectories, summary = play(gateway, agent, temperature=1.0)
    assert summary["counters"]["retokenized_tokens"] == 0
    assert summary["branches"] == 5
    assert sum(t.num_sampled for t in trajectories) == summary["counters"]["sampled_tokens"]
    for trajectory in trajectories:
        check_agreement(taught, trajectory, 1.0, gateway.version)
    assert np.mean(trajectories[0].behavior_logprobs[trajectories[0].loss_mask]) < -0.1


def test_an_episode_repeats_by_its_seed_and_varies_with_its_index(gateway):
    def agent(key):
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key)
        client.completions.create(model="m", prompt="goal", max_tokens=30)

    def tokens(**spec):
        return play(gateway, agent, temperature=1.0, **spec)[0][0].token_ids.tolist()

    first = tokens(seed=4)
    assert first == tokens(seed=4)
    assert first != tokens(seed=4, episode_index=1)


@contextlib.contextmanager
def paused(engine_url):
    """The engine takes requests and answers none."""

    def ask(path):
        request = urllib.request.Request(f"{engine_url}/{path}", method="POST", headers=AUTHORIZED)
        urllib.request.urlopen(request, timeout=10).close()

    ask("sleep?level=1&mode=keep")
    try:
        yield
    finally:
        ask("wake_up")


def test_finishing_ends_what_is_still_running(gateway, engine_url):
    async def scenario():
        client = GatewayClient(gateway.url)
        episode = await client.open(EpisodeSpec(task_id="t"))
        agent = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=episode.key, max_retries=0)
        prompt = {"model": "m", "prompt": "goal", "max_tokens": 240, "n": 48}
        call = asyncio.ensure_future(agent.completions.create(**prompt))
        deadline = time.monotonic() + 20
        while not (await client.describe(episode.id))["running"] and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        trajectories, summary = await client.finish(episode.id)
        outcome = (await asyncio.gather(call, return_exceptions=True))[0]
        await client.close()
        return trajectories, summary, outcome

    with paused(engine_url):
        trajectories, summary, outcome = asyncio.run(scenario())
    assert isinstance(outcome, openai.PermissionDeniedError)
    assert (summary["calls"], trajectories[0].num_tokens) == (0, 0)


def test_the_gateway_knows_how_its_engine_is(gateway, engine_url):
    async def state():
        client = EngineClient(engine_url)
        try:
            return await client.state()
        finally:
            await client.close()

    request = urllib.request.Request(f"{gateway.url}/asyncrl/v1/status", headers=AUTHORIZED)
    with urllib.request.urlopen(request, timeout=10) as reply:
        (engine,) = json.loads(reply.read())["engines"]
    assert (engine["url"], engine["health"], engine["version"]) == (engine_url, "healthy", gateway.version)
    seen = asyncio.run(state())
    assert seen["kv_tokens"] > 10_000
    assert 0 <= seen["kv_usage"] <= 1


@pytest.fixture
def evaluation(gateway):
    """A client of OpenAI with a key that no episode records."""

    async def open_key():
        client = GatewayClient(gateway.url)
        try:
            return (await client.open_key())[1]
        finally:
            await client.close()

    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=asyncio.run(open_key())) as client:
        yield client


def test_answers_follow_the_schema_that_a_request_gives(evaluation):
    schema = {
        "type": "object",
        "properties": {"way": {"enum": ["north", "south"]}, "far": {"type": "boolean"}},
        "required": ["way", "far"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "step", "schema": schema}}
    for seed in range(4):
        answer = evaluation.chat.completions.create(
            model="m", messages=[USER], response_format=form, max_tokens=120, seed=seed, stop=["]"]
        )
        said = json.loads(answer.choices[0].message.content)
        assert (set(said), said["way"] in ("north", "south"), type(said["far"])) == (
            {"way", "far"},
            True,
            bool,
        )
    object_mode = evaluation.chat.completions.create(
        model="m", messages=[USER], response_format={"type": "json_object"}, max_tokens=9
    )
    assert object_mode.choices[0].message.content.lstrip().startswith("{")
    schema["properties"]["way"] = {"type": "no such type"}
    with pytest.raises(openai.BadRequestError, match="rror"):
        evaluation.chat.completions.create(model="m", messages=[USER], response_format=form)


def choices_of(evaluation, prompts):
    """Ask as lm-eval does for a multiple choice."""
    options = {"model": "m", "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234}
    return evaluation.completions.create(prompt=prompts, **options).choices


def test_echoed_prompts_have_the_log_probabilities_of_a_forward_pass(evaluation, taught, renderer):
    """Summed over a continuation, and compared with the likeliest token, these are lm-eval's multiple choice."""
    right = conversation(renderer)[0][0].tolist()
    wrong = [*right[:-4], *renderer.tokenizer.encode("north east", add_special_tokens=False)]
    for prompt, choice in zip((right, wrong), choices_of(evaluation, [right, wrong]), strict=True):
        with torch.no_grad():
            logp = torch.log_softmax(taught(torch.tensor([prompt])).logits[0], -1)
        expected = logp[:-1].gather(1, torch.tensor(prompt)[1:, None])[:, 0].numpy()
        shown = choice.logprobs
        assert shown.token_logprobs[0] is None
        np.testing.assert_allclose(shown.token_logprobs[1:-1], expected, atol=1e-4)
        np.testing.assert_allclose(
            [max(top.values()) for top in shown.top_logprobs[1:-1]], logp[:-1].max(-1).values, atol=1e-4
        )
        greedy = [
            t == max(top.values())
            for t, top in zip(shown.token_logprobs, shown.top_logprobs, strict=True)
            if top
        ]
        assert all(greedy[-4:-1]) == (prompt == right)


def test_top_logprobs_and_narrow_sampling_are_those_of_the_engine(evaluation):
    options = {"model": "m", "messages": [USER], "logprobs": True, "top_logprobs": 3, "max_tokens": 12}
    answer = evaluation.chat.completions.create(**options, temperature=2.0, extra_body={"top_k": 1})
    for token in answer.choices[0].logprobs.content:
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, 0.0)
    free = evaluation.chat.completions.create(**options, temperature=2.0, seed=1).choices[0].logprobs.content
    assert len({token.token == token.top_logprobs[0].token for token in free}) == 2
    for token in free:
        logprobs = [top.logprob for top in token.top_logprobs]
        assert (len(logprobs), logprobs) == (3, sorted(logprobs, reverse=True))
