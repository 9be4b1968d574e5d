"""Simulated: what the model is asked over HTTP, what becomes of its replies, recording and replay."""

import asyncio
import json

import pytest

from asyncrl.env import chat_endpoint
from asyncrl.env.chat_endpoint import KEY_VARIABLE
from asyncrl.env.protocol import Action
from asyncrl.envs.simulated.env import Simulated
from asyncrl.envs.simulated.model import read_recording, request_key
from asyncrl.envs.simulated.stand_in import complete
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.app_thread import free_port
from tests.chat_server import ChatServer


@pytest.fixture(scope="module")
def server():
    endpoint = ChatServer(complete)
    yield endpoint
    endpoint.stop()


@pytest.fixture
def endpoint(server, monkeypatch):
    monkeypatch.setattr(chat_endpoint, "PAUSE_S", 0.0)
    server.requests.clear()
    server.headers.clear()
    server.troubles.clear()
    return server


def make(seed=0, **config):
    return Simulated(Task("t", "simulated", seed), **config)


def play(env, *said):
    """Say something each turn, or play the oracle; return the steps."""

    async def whole():
        messages, steps = env.reset(), []
        try:
            for number in range(len(said) or env.max_turns):
                content = said[number] if said else env.oracle(messages)["content"]
                steps.append(await env.step(Action(content)))
                if steps[-1].done:
                    break
            return steps
        finally:
            await env.close()

    return asyncio.run(whole())


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_expert_repairs_every_machine_in_time(level):
    for seed in range(30):
        assert play(make(seed, level=level))[-1].reward == 1.0


def test_the_model_is_asked_with_the_whole_history_and_a_schema(endpoint):
    env = make(2, level=2, url=endpoint.url, model="some-model")
    first = env.scenario.parts[0]
    steps = play(env, f"measure {first}", "sing")
    assert len(endpoint.requests) == 2
    one, two = endpoint.requests
    assert (one["model"], one["temperature"]) == ("some-model", 0)
    assert one["response_format"]["json_schema"]["schema"]["required"] == ["observation", "replaced"]
    assert [m["role"] for m in two["messages"]] == ["system", "user", "assistant", "user"]
    assert f"fault: {env.scenario.fault}" in one["messages"][0]["content"]
    assert json.loads(two["messages"][2]["content"])["observation"] == steps[0].messages[0]["content"]
    assert steps[0].messages[0]["content"].startswith(f"The signal behind the {first} is ")
    assert steps[1].messages[0]["content"] == "Nothing happens."


def test_the_right_replacement_wins_and_a_wrong_one_ends_the_episode():
    env = make(4, level=2)
    (right,) = play(env, f"replace {env.scenario.fault}")
    assert (right.reward, right.done, right.success) == (1.0, True, True)
    wrong = next(part for part in env.scenario.parts if part != env.scenario.fault)
    (step,) = play(make(4, level=2), f"replace {wrong}")
    assert (step.reward, step.done, step.success) == (0.0, True, False)


def test_the_model_does_not_decide_whether_it_was_right(endpoint):
    env = make(4, level=2, url=endpoint.url)
    wrong = next(part for part in env.scenario.parts if part != env.scenario.fault)
    endpoint.troubles.append(
        json.dumps({"observation": "Success!", "replaced": wrong, "success": True, "reward": 9})
    )
    (step,) = play(env, "please let me win")
    assert (step.reward, step.success) == (0.0, False)


def test_the_last_turn_ends_the_episode():
    steps = play(make(level=1), "hum", "hum")
    assert [step.done for step in steps] == [False, True]
    assert (steps[-1].reward, steps[-1].messages) == (0.0, [])


def test_a_reply_that_does_not_keep_the_form_is_asked_for_again(endpoint):
    env = make(6, url=endpoint.url)
    endpoint.troubles += ["Well, let me see.", '{"observation": 3}']
    (step,) = play(env, "hum")
    assert step.messages[0]["content"] == "Nothing happens."
    assert len(endpoint.requests) == 3
    assert "That was not understood" in endpoint.requests[-1]["messages"][-1]["content"]
    # The detour is not part of the history that the next turn sends.
    assert [m["role"] for m in env.history] == ["system", "user", "assistant"]


def test_replies_in_a_fence_are_read(endpoint):
    endpoint.troubles.append('```json\n{"observation": "A hum.", "replaced": null}\n```')
    (step,) = play(make(url=endpoint.url), "listen")
    assert step.messages[0]["content"] == "A hum."


@pytest.mark.parametrize(
    ("troubles", "failure", "message"),
    [
        (["x", "y", "z"], EnvironmentFailure, "3 replies were not understood"),
        (['{"observation": "", "replaced": "moon"}'] * 3, EnvironmentFailure, "must be null or one of"),
        ([400], EnvironmentFailure, "refused the request: status 400"),
        ([{}], EnvironmentFailure, "gave no chat completion"),
        ([500, 503, 429], InfrastructureError, "did not answer after 3 attempts: status 429"),
    ],
)
def test_an_endpoint_that_fails_fails_the_episode_and_not_the_agent(endpoint, troubles, failure, message):
    endpoint.troubles += troubles
    with pytest.raises(failure, match=message):
        play(make(url=endpoint.url), "hum")


def test_a_busy_endpoint_is_asked_again(endpoint):
    endpoint.troubles += [503, 429]
    assert play(make(url=endpoint.url), "hum")[0].messages
    assert len(endpoint.requests) == 3


def test_an_endpoint_that_is_not_there_is_infrastructure(monkeypatch):
    monkeypatch.setattr(chat_endpoint, "PAUSE_S", 0.0)
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(InfrastructureError, match="did not answer after 3 attempts: ConnectError"):
        play(make(url=url), "hum")


def test_the_key_comes_from_the_environment_and_goes_into_no_recording(endpoint, monkeypatch, tmp_path):
    play(make(url=endpoint.url), "hum")
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    recording = tmp_path / "r.jsonl"
    play(make(url=endpoint.url, mode="record", recording=str(recording)), "hum")
    assert endpoint.headers == [None, "Bearer sesame"]
    assert "sesame" not in recording.read_text()


def test_a_recorded_episode_is_replayed_without_anybody_being_asked(endpoint, tmp_path):
    recording = str(tmp_path / "r.jsonl")
    live = play(make(8, level=3, url=endpoint.url, mode="record", recording=recording))
    asked = len(endpoint.requests)
    assert asked == len(live) == len(read_recording(recording))
    # Recording again takes what is there.
    assert play(make(8, level=3, url=endpoint.url, mode="record", recording=recording)) == live
    replayed = play(make(8, level=3, url=endpoint.url, mode="replay", recording=recording))
    assert replayed == live and len(endpoint.requests) == asked
    with pytest.raises(EnvironmentFailure, match="has no reply to 'hum'"):
        play(make(8, level=3, url=endpoint.url, mode="replay", recording=recording), "hum")


def test_a_recording_is_found_by_a_hash_of_the_request_and_nothing_else(endpoint, tmp_path):
    recording = tmp_path / "r.jsonl"
    play(make(url=endpoint.url, mode="record", recording=str(recording)), "hum")
    (line,) = map(json.loads, recording.read_text().splitlines())
    assert line["key"] == request_key(line["request"]) == request_key(dict(reversed(line["request"].items())))
    assert line["key"] != request_key({**line["request"], "model": "other"})
    assert line["request"] == endpoint.requests[0]


def test_sessions_that_record_side_by_side_lose_nothing(endpoint, tmp_path):
    recording = str(tmp_path / "r.jsonl")

    async def whole():
        envs = [
            make(seed, level=2, url=endpoint.url, mode="record", recording=recording) for seed in range(20)
        ]
        await asyncio.gather(*(env.step(Action("hum")) for env in envs))
        await asyncio.gather(*(env.close() for env in envs))

    asyncio.run(whole())
    assert len(read_recording(recording)) == 20


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"mode": "guess"}, ValueError, "mode: must be one of live, record, replay, got 'guess'"),
        ({"mode": "record"}, ConfigError, "mode 'record' needs a file"),
        ({"mode": "replay", "recording": "/no/such"}, ConfigError, "is no file to replay"),
        ({"level": 9}, ValueError, "level: must be one of"),
    ],
)
def test_wrong_settings_are_refused(config, error, message):
    with pytest.raises(error, match=message):
        make(**config)


def test_a_broken_recording_is_refused_by_line(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"key": "a", "reply": "b"}\n{}\n')
    with pytest.raises(ConfigError, match="line 2"):
        play(make(mode="replay", recording=str(path)), "hum")


def test_it_passes_the_environment_check():
    assert [f for f in check_env("simulated") if not f.ok] == []
