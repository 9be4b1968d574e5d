"""OpenEnv both ways, against the real package: its servers played by us, our environments by its client."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError, UnavailableError
from asyncrl.extensions.env_adapters.openenv import OpenEnv
from asyncrl.extensions.env_adapters.openenv_socket import OpenEnvSocket, socket_url
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.credentials import AUTHORIZED, TOKEN
from tests.packages import needs

needs("openenv", "websockets")

PEER = Path(__file__).with_name("openenv_peer.py")
SEEDED = 7


@contextlib.contextmanager
def running(command, ready, environment=None):
    """A child process, once `ready()` gives its address."""
    process = subprocess.Popen([sys.executable, *command], env=os.environ | (environment or {}))
    try:
        deadline = time.monotonic() + 60
        while (url := ready()) is None:
            assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def their_server(kind):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ready():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return f"http://127.0.0.1:{port}"

    return running([str(PEER), "server", kind, str(port)], ready)


def our_server(folder, name):
    ready_file = folder / f"{name}.json"
    command = ["-m", "asyncrl", "serve", "openenv", "--env", name, "--ready-file", str(ready_file)]
    return running(
        command,
        lambda: json.loads(ready_file.read_text())["url"] if ready_file.exists() else None,
    )


@pytest.fixture(scope="module")
def guess():
    with their_server("guess") as url:
        yield url


@pytest.fixture(scope="module")
def gridworld(tmp_path_factory):
    with our_server(tmp_path_factory.mktemp("openenv"), "gridworld") as url:
        yield url


def play(url, turns, **config):
    """Play by ourselves through a host; return the first observation and the steps."""

    async def episode():
        host = EnvHost()
        try:
            opened = await host.open(Task("t", "openenv", SEEDED), {"url": url, **config})
            steps = []
            for index, turn in enumerate(turns):
                action = turn if isinstance(turn, Action) else Action(turn)
                steps.append(await host.step(opened.id, index, action, 30))
            return opened, steps
        finally:
            await host.close_all()

    return asyncio.run(asyncio.wait_for(episode(), 60))


def their_client(url, actions, seed=None):
    """Play by OpenEnv's own client; return what it saw."""
    command = [sys.executable, str(PEER), "client", url, *([] if seed is None else [str(seed)])]
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_real_openenv_server_is_played_with_seed_reward_and_end(guess):
    opened, steps = play(guess, ["3", "7"], action_field="guess", reset={"name": "Ada"})
    assert opened.messages == [{"role": "user", "content": "guess a digit, Ada"}]
    assert (steps[0].messages[0]["content"], steps[0].reward, steps[0].done) == ("higher", -0.1, False)
    assert (steps[1].reward, steps[1].done, steps[1].success, steps[1].truncated) == (1.1, True, True, False)


def test_an_action_the_server_does_not_take_is_told_to_the_model(guess):
    _, steps = play(guess, ["three", "{}", "[" * 200_000, '{"guess": 7}'], action_field="json")
    texts = [step.messages[0]["content"] for step in steps[:3]]
    assert texts[0].startswith("error: an action must be JSON: ")
    assert texts[2].startswith("error: an action must be JSON: maximum recursion depth")
    assert texts[1] == "error: Invalid message; guess: Field required"
    assert [step.components["invalid"] for step in steps] == [1.0, 1.0, 1.0, 0.0]


def test_the_turns_have_an_end_and_an_import_path_can_make_the_action(guess):
    _, steps = play(guess, ["a", "bb"], to_action=f"{__name__}:length", max_turns=2)
    assert [step.done for step in steps] == [False, True]
    assert (steps[1].truncated, steps[1].success) == (True, False)


def length(action):
    return {"guess": len(action.content)}


def test_an_error_of_the_environment_is_its_own_and_a_full_server_infrastructures(guess):
    with pytest.raises(EnvironmentFailure, match="EXECUTION_ERROR: thirteen is unlucky"):
        play(guess, ["13"], action_field="guess")

    async def crowd():
        sockets = [OpenEnvSocket(guess, "", 10) for _ in range(5)]
        try:
            for one in sockets:
                await one.open()
                await one.ask("reset", {})
        finally:
            for one in sockets:
                await one.close()

    with pytest.raises(UnavailableError, match="is full"):
        asyncio.run(crowd())


def test_a_server_that_is_not_there_or_goes_away_is_infrastructure():
    with pytest.raises(InfrastructureError, match="cannot connect"):
        play("http://127.0.0.1:9", [])

    async def cut():
        with their_server("guess") as url:
            one = OpenEnvSocket(url, "", 10)
            await one.open()
            await one.ask("reset", {})
        try:
            await one.ask("step", {"guess": 1})
        finally:
            await one.close()

    with pytest.raises(InfrastructureError, match="is gone"):
        asyncio.run(cut())


def test_the_tools_of_a_server_are_offered_and_called():
    def call(number):
        return Action("", (ToolCall("c", "add", {"number": number}), ToolCall("d", "sub", {})), ("bad",))

    with their_server("tools") as url:
        opened, steps = play(url, [call(4), Action("", (ToolCall("c", "add", {"number": 6}),))], tools=True)
    assert [tool["function"]["name"] for tool in opened.opened.tools] == ["add"]
    assert [m["content"] for m in steps[0].messages] == [
        "4",
        "error: no tool 'sub'; there are add",
        "error: bad",
    ]
    assert (steps[1].reward, steps[1].done, steps[1].success) == (1.0, True, True)


def test_openenvs_client_plays_our_environment(gridworld):
    seen = their_client(gridworld, [{"message": "fly"}, "state", {"message": "north"}], seed=3)
    assert seen[0]["observation"]["messages"][0]["role"] == "user"
    assert seen[0]["observation"]["text"].startswith("goal ")
    assert (seen[0]["reward"], seen[0]["done"]) == (None, False)
    assert seen[1]["observation"]["metadata"]["components"] == {"goal": 0.0, "invalid": 1.0}
    assert (seen[2]["step_count"], seen[2]["done"]) == (1, False)
    assert their_client(gridworld, [], seed=3)[0]["observation"]["text"] == seen[0]["observation"]["text"]


def test_openenvs_client_calls_our_tools(tmp_path):
    arguments = {"a": 9, "op": "*", "b": 4}
    with our_server(tmp_path, "calculator") as url:
        call = {"type": "call_tool", "tool_name": "calc", "arguments": arguments}
        asked, tools, called = their_client(url, [{"type": "list_tools"}, call], seed=5)
        turns = [{"content": "", "tool_calls": [{"name": "calc", "arguments": arguments}]}, {"message": "36"}]
        end = their_client(url, turns, seed=5)[-1]
    assert asked["observation"]["text"] == "9 * 4"
    assert tools["observation"]["tools"][0]["name"] == "calc"
    assert called["observation"]["result"] == "36"
    assert (end["reward"], end["done"]) == (1.0, True)


def test_our_adapter_plays_our_own_facade(gridworld):
    findings = check_env("openenv", {"url": gridworld, "token_env": "ASYNCRL_TOKEN"}, 5)
    assert [f for f in findings if not f.ok] == []

    async def north():
        env = OpenEnv(Task("t", "openenv", 4), url=gridworld, token_env="ASYNCRL_TOKEN")
        text = (await env.reset())[0]["content"]
        for _ in range(8):
            step = await env.step(Action(text.split()[1]))
            if step.done:
                break
            text = step.messages[0]["content"]
        await env.close()
        return step

    step = asyncio.run(north())
    assert (step.reward, step.success) == (1.0, True)


def test_resets_without_a_seed_walk_the_train_split_and_an_index_chooses_a_task(gridworld):
    async def resets():
        one = OpenEnvSocket(gridworld, "ASYNCRL_TOKEN", 10)
        await one.open()
        answers = [await one.ask("reset", data) for data in ({}, {}, {"split": "heldout", "task_index": 2})]
        await one.close()
        return [a["metadata"]["task_id"] for a in answers]

    first, second, chosen = asyncio.run(resets())
    assert int(second.removeprefix("train-")) == int(first.removeprefix("train-")) + 2
    assert chosen == "heldout-5"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ('{"type": "mcp", "data": {}}', "UNKNOWN_TYPE"),
        ("[]", "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"message": "north"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": []}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"sead": 1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"split": "test"}}', "VALIDATION_ERROR"),
    ],
)
def test_malformed_messages_are_answered_with_openenvs_codes_and_end_nothing(gridworld, message, code):
    from websockets.sync.client import connect

    with connect(socket_url(gridworld), additional_headers=AUTHORIZED) as raw:
        raw.send(message)
        assert json.loads(raw.recv(10))["data"]["code"] == code
        raw.send('{"type": "reset", "data": {"seed": 1}}')
        assert json.loads(raw.recv(10))["type"] == "observation"
        raw.send('{"type": "step", "data": {"message": 3}}')
        assert json.loads(raw.recv(10))["data"]["code"] == "VALIDATION_ERROR"


def test_the_token_is_asked_for_on_the_socket_too(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENENV_TOKEN", TOKEN)
    with our_server(tmp_path, "gridworld") as url:
        with pytest.raises(InfrastructureError, match="403"):
            play(url, [])
        opened, _ = play(url, [], token_env="OPENENV_TOKEN")
    assert opened.messages[0]["content"].startswith("goal")


def test_addresses_and_tokens_are_checked():
    assert socket_url("https://host/env/") == "wss://host/env/ws"
    assert socket_url("ws://host:1/ws") == "ws://host:1/ws"
    with pytest.raises(ConfigError, match="url: must begin with"):
        OpenEnv(Task("t", "openenv"), url="")
    with pytest.raises(ConfigError, match="NO_SUCH_TOKEN is not set"):
        OpenEnv(Task("t", "openenv"), url="http://h", token_env="NO_SUCH_TOKEN")
