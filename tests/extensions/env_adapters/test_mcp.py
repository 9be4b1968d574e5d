"""MCP servers as tools: in this process, on stdio and over HTTP."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError, InputError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.packages import needs

needs("mcp")

SHOP = Path(__file__).with_name("mcp_shop.py")
STDIO = {"command": sys.executable, "args": [str(SHOP)]}
CONFIG = {"servers": "mcp_shop:make_server", "reward": "mcp_shop:reward"}
TASK = Task("t", "mcp", 2, data={"prompt": "Sell 2 pears.", "number": 2})


@contextlib.asynccontextmanager
async def session(**config):
    host = EnvHost()
    try:
        yield host, await host.open(TASK, CONFIG | config)
    finally:
        await host.close_all()


def call(name, id="c", **arguments):
    return ToolCall(id, name, arguments)


async def step(host, opened, index, *calls, content="", errors=()):
    return await host.step(opened.id, index, Action(content, calls, errors), 30.0)


def run(coroutine_function):
    return asyncio.run(asyncio.wait_for(coroutine_function(), 60))


@contextlib.contextmanager
def http_shop():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SHOP, str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


async def sell_two_pears(servers):
    async with session(servers=servers) as (host, opened):
        names = [tool["function"]["name"] for tool in opened.opened.tools]
        sold = await step(host, opened, 0, call("sell", "a", fruit="pears", number=2))
        counted = await step(host, opened, 1, call("count", "b", fruit="pears"))
        end = await step(host, opened, 2, content="3")
        return names, sold.messages + counted.messages, end


def check_sale(names, messages, end):
    assert {"count", "sell"} <= set(names)
    assert messages == [
        {"role": "tool", "name": "sell", "tool_call_id": "a", "content": "sold 2 pears"},
        {"role": "tool", "name": "count", "tool_call_id": "b", "content": "3"},
    ]
    assert (end.done, end.reward, end.success, end.components["sold"]) == (True, 1.0, True, 1.0)


@pytest.mark.parametrize("servers", [CONFIG["servers"], STDIO])
def test_a_server_in_process_or_on_stdio_answers_and_its_final_state_is_scored(servers):
    check_sale(*run(lambda: sell_two_pears(servers)))


def test_a_server_over_http_answers_too():
    with http_shop() as url:
        check_sale(*run(lambda: sell_two_pears(url)))


def test_the_calls_of_one_turn_run_at_the_same_time():
    async def both():
        async with session(call_timeout_s=10) as (host, opened):
            # One after the other would wait for ever for the second.
            return await step(host, opened, 0, call("wait_for_ring", "a"), call("ring", "b"))

    messages = run(both).messages
    assert [(m["tool_call_id"], m["content"]) for m in messages] == [("a", "rung"), ("b", "ringing")]


def test_mistakes_of_the_model_become_observations():
    async def mistakes():
        async with session(call_timeout_s=0.2, max_characters=50) as (host, opened):
            calls = [
                call("buy"),
                call("count", fruit="plums"),
                call("count", vegetable="leek"),
                call("wait_for_ring"),
                call("story", length=60),
            ]
            return await step(host, opened, 0, *calls, errors=("not JSON",))

    step_ = run(mistakes)
    texts = [m["content"] for m in step_.messages]
    assert texts[0].startswith("error: no tool 'buy'; there are count, sell")
    assert texts[1] == "error: Error executing tool count: no plums here"
    assert texts[2].startswith("error: ") and texts[3] == "error: wait_for_ring: no answer within 0.2 s"
    assert texts[4] == "x" * 50 + "\n[...]" and texts[5] == "error: not JSON"
    assert not step_.done
    assert step_.components == {"malformed": 1.0, "failed_calls": 4.0}


def test_a_server_that_dies_fails_the_episode_as_infrastructure():
    async def die():
        async with session(servers=STDIO) as (host, opened):
            await step(host, opened, 0, call("crash"))

    with pytest.raises(InfrastructureError, match="'crash' is gone"):
        run(die)


def test_each_episode_has_a_server_of_its_own_and_the_turns_have_an_end():
    async def two():
        async with session() as (host, first), session(max_turns=1) as (other, second):
            await step(host, first, 0, call("sell", fruit="pears", number=5))
            return await step(other, second, 0, call("count", fruit="pears"))

    end = run(two)
    assert (end.done, end.truncated, end.reward, end.components["sold"]) == (True, True, 0.0, 0.0)


def test_several_servers_are_told_apart_and_tools_can_be_chosen():
    async def two():
        servers = {"north": CONFIG["servers"], "south": STDIO}
        async with session(servers=servers, only=["north__count", "south__sell"]) as (host, opened):
            answers = await step(
                host,
                opened,
                0,
                call("south__sell", fruit="pears", number=1),
                call("north__count", fruit="pears"),
                call("count", fruit="pears"),
            )
            return [tool["function"]["name"] for tool in opened.opened.tools], answers.messages

    names, messages = run(two)
    assert names == ["north__count", "south__sell"]
    assert [m["content"] for m in messages[:2]] == ["sold 1 pears", "5"]
    assert messages[2]["content"].startswith("error: no tool 'count'")


def test_the_check_plays_the_users_oracle():
    config = CONFIG | {"task_list": "mcp_shop:tasks", "oracle": "mcp_shop:oracle"}
    findings = check_env("mcp", config, 3)
    assert [f for f in findings if not f.ok] == []
    assert "mean reward 1.000" in next(f for f in findings if f.name == "oracle scores").seen


@pytest.mark.parametrize(
    ("config", "error", "problem"),
    [
        ({"servers": None}, InputError, "servers: must name"),
        ({"reward": "reward"}, InputError, "reward: must be an import path"),
        ({"servers": {"a": {"comand": "x"}}}, EnvironmentFailure, "servers.a: must be an import path, a URL"),
        (
            {"servers": {"url": "http://127.0.0.1:9/mcp", "token_env": "NO_SUCH_TOKEN"}},
            EnvironmentFailure,
            "NO_SUCH_TOKEN is not set",
        ),
        ({"only": ["buy"]}, EnvironmentFailure, "only: no tool 'buy'; there are count"),
        ({"servers": {"command": "/no/such/program"}}, InfrastructureError, "cannot connect"),
    ],
)
def test_wrong_settings_and_unreachable_servers_are_named(config, error, problem):
    async def opening():
        async with session(**config):
            pass

    with pytest.raises(error, match=problem):
        run(opening)


def test_without_a_task_list_a_task_file_is_asked_for():
    with pytest.raises(ConfigError, match="needs it, or a task file"):
        check_env("mcp", CONFIG, 1)
