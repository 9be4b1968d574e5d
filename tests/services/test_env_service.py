"""The environment service over real HTTP: sessions, statuses, batches, and the client that drives it."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from asyncrl.clients.env import EnvClient
from asyncrl.env.protocol import Action
from asyncrl.errors import EnvironmentFailure, InfrastructureError
from asyncrl.types import Task


def start(folder, **options):
    ready = folder / "ready.json"
    code = f"from asyncrl.services.env import serve_env; serve_env(ready_file={str(ready)!r}, **{options!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert process.poll() is None, "the service died while starting"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, json.loads(ready.read_text())["url"]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    process, url = start(tmp_path_factory.mktemp("env"), max_sessions=64)
    yield url
    process.terminate()
    assert process.wait(20) == 0


def ask(method, url, body=None, token=""):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.loads(reply.read()), dict(reply.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def open_session(url, **task):
    return ask("POST", f"{url}/v1/sessions", {"task": {"env": "gridworld", "seed": 3, **task}})


def test_a_session_is_created_stepped_shown_and_closed(service):
    status, session, _ = open_session(service)
    assert status == 201
    assert session["messages"][0]["content"].startswith("goal")
    path = f"{service}/v1/sessions/{session['session_id']}"
    status, step, _ = ask("POST", f"{path}/step", {"step_index": 0, "action": {"content": "north"}})
    assert (status, step["done"]) == (200, False)
    assert ask("POST", f"{path}/step", {"step_index": 0, "action": {"content": "north"}})[1] == step
    assert ask("POST", f"{path}/step", {"step_index": 7, "action": {"content": "north"}})[0] == 409
    assert ask("GET", path)[1]["next_step_index"] == 1
    assert ask("DELETE", path)[0] == 200
    assert ask("DELETE", path)[0] == 200
    assert ask("POST", f"{path}/step", {"step_index": 1, "action": {"content": "north"}})[0] == 410


def test_wrong_bodies_are_refused_by_name_and_change_nothing(service):
    before = ask("GET", f"{service}/v1/status")[1]["sessions"]
    assert ask("POST", f"{service}/v1/sessions", {"tusk": {}})[0] == 400
    assert open_session(service, env="gridwrld")[0] == 400
    assert open_session(service, seed="x")[0] == 400
    status, body, _ = ask(
        "POST", f"{service}/v1/sessions", {"task": {"env": "gridworld"}, "config": {"size": 1}}
    )
    assert status == 400
    assert "size" in body["error"]["message"]
    assert ask("GET", f"{service}/v1/status")[1]["sessions"] == before


def test_environments_are_listed_with_their_tools(service):
    assert {"gridworld", "calculator"} <= set(ask("GET", f"{service}/v1/envs")[1]["envs"])
    assert ask("GET", f"{service}/v1/envs/calculator/schema")[1]["tools"][0]["function"]["name"] == "calc"


def test_metrics_count_sessions(service):
    with urllib.request.urlopen(f"{service}/metrics", timeout=10) as reply:
        assert b"asyncrl_env_sessions" in reply.read()


def test_a_full_service_answers_429_with_a_time_to_retry(tmp_path):
    process, url = start(tmp_path, max_sessions=1)
    try:
        assert open_session(url)[0] == 201
        status, _, headers = open_session(url)
        assert (status, headers["retry-after"]) == (429, "1")
    finally:
        process.terminate()
        process.wait(20)


def test_a_token_is_asked_for_everywhere_but_at_the_health_check(tmp_path):
    process, url = start(tmp_path, token="secret")
    try:
        assert ask("GET", f"{url}/healthz")[0] == 200
        assert ask("GET", f"{url}/v1/envs")[0] == 401
        assert ask("GET", f"{url}/v1/envs", token="wrong")[0] == 401
        assert ask("GET", f"{url}/v1/envs", token="secret")[0] == 200
    finally:
        process.terminate()
        process.wait(20)


def test_many_clients_play_whole_episodes_through_batches(service):
    async def episode(client, seed):
        session = await client.open(Task(f"t{seed}", "gridworld", seed), {})
        words, total = session.messages[0]["content"].split(), 0.0
        for turn in range(session.max_turns):
            step = await session.step(turn, Action(words[1]), 10)
            total += step.reward
            if step.done:
                break
            words = step.messages[0]["content"].split()
        await session.close()
        return total

    async def scenario():
        client = EnvClient([service])
        totals = await asyncio.gather(*(episode(client, seed) for seed in range(50)))
        await client.close()
        return totals

    assert asyncio.run(scenario()) == [1.0] * 50
    assert ask("GET", f"{service}/v1/status")[1]["sessions"] == 0


def test_the_client_sorts_failures_by_whose_fault_they_are(service):
    async def scenario():
        client = EnvClient([service])
        with pytest.raises(EnvironmentFailure, match="size"):
            await client.open(Task("t", "gridworld", 0), {"size": 1})
        session = await client.open(Task("t", "gridworld", 0), {})
        await session.close()
        with pytest.raises(InfrastructureError, match="has ended"):
            await session.step(0, Action("north"), 5)
        await client.close()
        gone = EnvClient(["http://127.0.0.1:9"])
        with pytest.raises(InfrastructureError):
            await gone.open(Task("t", "gridworld", 0), {})
        await gone.close()

    asyncio.run(scenario())
