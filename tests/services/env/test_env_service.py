"""The environment service over real HTTP: sessions, statuses, batches, limits; here and in worker processes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgpack
import pytest

from asyncrl.config import load_config
from tests.credentials import AUTHORIZED, PACKED, TOKEN
from tests.waiting import running, wait_for_url

TESTS = Path(__file__).parents[2]
GRID = {"env": "gridworld", "seed": 3}


SERVED = {
    name: {}
    for name in ("gridworld", "calculator", *(f"tests.env.hosted_envs:{e}" for e in ("InPlace", "OnThread")))
}


def start(folder, **options):
    """Start a service as a process of its own; return it and its URL."""
    ready = folder / "ready.json"
    options.setdefault("envs", SERVED)
    code = f"from asyncrl.services.env.service import serve_env; serve_env(ready_file={str(ready)!r}, **{options!r})"
    env = os.environ | {"PYTHONPATH": str(TESTS / "env")}
    process = subprocess.Popen([sys.executable, "-c", code], env=env)
    return process, wait_for_url(ready, running(process))


def end(process):
    process.terminate()
    assert process.wait(30) == 0


@pytest.fixture(scope="module", params=[0, 2], ids=["here", "in workers"])
def service(request, tmp_path_factory):
    process, url = start(tmp_path_factory.mktemp("env"), max_sessions=64, processes=request.param)
    yield url
    end(process)


def ask(method, url, body=None, token=TOKEN):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read()), dict(reply.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def open_session(url, env="gridworld", **more):
    return ask("POST", f"{url}/v1/sessions", {"task": {"env": env, "seed": 3}, **more})


def open_troubled(url, env="InPlace"):
    status, session, _ = open_session(url, f"tests.env.hosted_envs:{env}")
    assert status == 201
    return f"{url}/v1/sessions/{session['session_id']}", session


def say(path, word, index=0, **more):
    return ask("POST", f"{path}/step", {"step_index": index, "action": {"content": word}, **more})[:2]


def metrics(url):
    request = urllib.request.Request(f"{url}/metrics", headers=AUTHORIZED)
    with urllib.request.urlopen(request, timeout=10) as reply:
        lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_session_is_created_stepped_shown_and_closed(service):
    status, session, _ = open_session(service)
    assert (status, session["lease_s"], session["max_turns"]) == (201, 120.0, 8)
    assert session["messages"][0]["content"].startswith("goal")
    path = f"{service}/v1/sessions/{session['session_id']}"
    status, step = say(path, "north")
    assert (status, step["done"]) == (200, False)
    assert say(path, "north") == (200, step)
    assert say(path, "north", 7)[0] == 409
    assert ask("GET", path)[1]["next_step_index"] == 1
    assert ask("POST", f"{path}/renew")[1] == {"lease_s": 120.0}
    assert ask("DELETE", path)[0] == 200
    assert ask("DELETE", path)[0] == 200
    assert say(path, "north", 1)[0] == 410


def test_wrong_bodies_are_refused_by_name_and_change_nothing(service):
    before = ask("GET", f"{service}/v1/status")[1]["sessions"]
    assert ask("POST", f"{service}/v1/sessions", {"tusk": {}})[0] == 400
    assert open_session(service, "gridwrld")[0] == 400
    assert ask("POST", f"{service}/v1/sessions", {"task": GRID | {"seed": "x"}})[0] == 400
    assert ask("GET", f"{service}/v1/status")[1]["sessions"] == before


@pytest.mark.parametrize(
    ("env", "config", "message"),
    [
        (
            "browser",
            {"chromium": "/tmp/program"},
            "'browser' is not served here; allowed: calculator, gridworld",
        ),
        ("antigravity:fly", {}, "'antigravity:fly' is not served here"),
        ("/tmp/x.py:Env", {}, "'/tmp/x.py:Env' is not served here"),
        ("gridworld", {"size": 9}, "env.config.size: is the service's to set"),
        ("mix", {"parts": {"os:system": {"weight": 1}}}, "'mix' is not served here"),
    ],
)
def test_a_caller_names_a_task_and_neither_code_nor_settings(service, env, config, message):
    before = ask("GET", f"{service}/v1/status")[1]["opened"]
    status, body, _ = open_session(service, env, config=config)
    assert status == 400
    assert message in body["error"]["message"]
    operation = {
        "op": "open",
        "task": {"id": "t", "split": "train", "data": {}, "env": env, "seed": 3},
        "config": config,
    }
    raw = msgpack.packb({"operations": [operation]})
    request = urllib.request.Request(f"{service}/v1/batch", raw, PACKED, method="POST")
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert message in msgpack.unpackb(reply.read())[1]["message"]
    assert ask("GET", f"{service}/v1/status")[1]["opened"] == before


def test_sessions_have_the_configuration_of_their_service(tmp_path):
    process, url = start(tmp_path, envs={"gridworld": {"size": 9}, "calculator": {"limit": "wrong"}})
    try:
        assert open_session(url)[0] == 201
        assert open_session(url, config={"size": 9})[0] == 201
        status, body, _ = open_session(url, "calculator")
        assert (status, body["error"]["type"]) == (400, "InputError")
        assert "limit" in body["error"]["message"]
    finally:
        end(process)


@pytest.mark.parametrize(
    ("word", "status", "kind", "message"),
    [
        ("raise", 502, "EnvironmentFailure", "step raised KeyError"),
        ("object", 502, "EnvironmentFailure", "cannot be sent|no JSON"),
        ("infrastructure", 502, "InfrastructureError", "machine is gone"),
        ("sleep 30", 504, "DeadlineError", r"took longer than 0.1 s"),
    ],
)
def test_whose_fault_a_failed_step_was_is_in_its_status_and_type(service, word, status, kind, message):
    path, _ = open_troubled(service, "OnThread")
    found, body = say(path, word, timeout_s=0.1 if status == 504 else 60)
    assert (found, body["error"]["type"]) == (status, kind)
    assert re.search(message, body["error"]["message"])
    ask("DELETE", path)


def test_environments_are_listed_with_their_tools(service):
    assert {"gridworld", "calculator"} <= set(ask("GET", f"{service}/v1/envs")[1]["envs"])
    assert ask("GET", f"{service}/v1/envs/calculator/schema")[1]["tools"][0]["function"]["name"] == "calc"
    assert ask("GET", f"{service}/v1/envs/nothing/schema")[0] == 400


def test_metrics_count_sessions_steps_and_failures_by_class(service):
    deadline = time.monotonic() + 30
    # What the tests before left may still be closing.
    while (before := metrics(service)).get('asyncrl_env_held{env="other"}'):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    path, _ = open_troubled(service)
    assert say(path, "hello")[0] == 200
    assert metrics(service)['asyncrl_env_held{env="other"}'] == 1
    assert say(path, "raise", 1)[0] == 502
    after = metrics(service)
    for name in ("opened_total", "steps_total", "failed_total", 'failures_total{failure="environment"}'):
        assert after[f"asyncrl_env_{name}"] - before.get(f"asyncrl_env_{name}", 0) == 1, name


def test_a_batch_answers_ready_operations_while_a_slow_step_runs(service, tmp_path):
    slow = open_troubled(service, "OnThread")[1]["session_id"]
    fast = open_session(service)[1]["session_id"]
    operations = [
        {"op": "step", "session": session, "step_index": 0, "timeout_s": 60,
         "action": {"content": word, "tool_calls": [], "parse_errors": []}}
        for session, word in ((slow, f"wait {tmp_path / 'go'}"), (fast, "north"))
    ]  # fmt: skip
    operations += [{"op": "jump"}, {"op": "step"}, {"op": "close", "session": "unknown"}]
    request = urllib.request.Request(
        f"{service}/v1/batch", msgpack.packb({"operations": operations}), PACKED, method="POST"
    )
    unpacker, found = msgpack.Unpacker(), {}
    with urllib.request.urlopen(request, timeout=60) as reply:
        while len(found) < len(operations):
            chunk = reply.read1(65536)
            assert chunk, "the answer ended early"
            unpacker.feed(chunk)
            found.update((number, result) for number, result in unpacker)
            if len(found) == 4:
                # Only now may the first operation end.
                (tmp_path / "go").touch()
        assert reply.read() == b""
    assert found[0]["messages"][0]["content"] == "found"
    assert found[1]["done"] is False
    assert found[2]["message"] == "op: must be open, step, renew, close or abandon, got 'jump'"
    assert (found[3]["error"], found[3]["status"]) == ("InputError", 400)
    assert found[4] == {}
    for session in (slow, fast):
        ask("DELETE", f"{service}/v1/sessions/{session}")


def test_answers_that_a_client_wants_gathered_come_in_one_piece(service, tmp_path):
    slow = [open_troubled(service, "OnThread")[1]["session_id"] for _ in range(2)]
    fast = open_session(service)[1]["session_id"]
    operations = [
        {"op": "step", "session": session, "step_index": 0, "timeout_s": 60,
         "action": {"content": word, "tool_calls": [], "parse_errors": []}}
        for session, word in ((fast, "north"), *((one, f"wait {tmp_path / one}") for one in slow))
    ]  # fmt: skip
    body = msgpack.packb({"operations": operations, "gather_s": 2.0})
    pieces = []
    with urllib.request.urlopen(
        urllib.request.Request(f"{service}/v1/batch", body, PACKED, method="POST"), timeout=60
    ) as reply:
        while chunk := reply.read1(65536):
            pieces.append([number for number, _ in msgpack.Unpacker(io.BytesIO(chunk))])
            if len(pieces) == 1:
                for one in slow:
                    (tmp_path / one).touch()
    assert pieces[0] == [0]
    assert [sorted(piece) for piece in pieces[1:]] == [[1, 2]]
    for session in (*slow, fast):
        ask("DELETE", f"{service}/v1/sessions/{session}")


def test_a_batch_that_is_none_is_refused(service):
    gathered = [msgpack.packb({"operations": [], "gather_s": value}) for value in (-1, 11.0, "1", None)]
    for body in (b"\xc1", msgpack.packb([]), msgpack.packb({"operations": 3}), *gathered):
        request = urllib.request.Request(f"{service}/v1/batch", body, PACKED, method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        assert caught.value.code == 400


def test_a_full_service_answers_429_with_a_time_to_retry(tmp_path):
    process, url = start(tmp_path, max_sessions=3, limits={"gridworld": 1})
    try:
        assert open_session(url)[0] == 201
        status, body, headers = open_session(url)
        assert (status, headers["retry-after"]) == (429, "1")
        assert body["error"]["message"] == "all 1 sessions of environment 'gridworld' are in use"
        for _ in range(2):
            open_troubled(url)
        status, body, _ = open_session(url, "calculator")
        assert (status, body["error"]["message"]) == (429, "all 3 environment sessions are in use")
        assert metrics(url)["asyncrl_env_rejected_total"] == 2
    finally:
        end(process)


def test_a_token_is_asked_for_everywhere_but_at_the_health_check(tmp_path):
    process, url = start(tmp_path)
    try:
        assert ask("GET", f"{url}/healthz")[0] == 200
        for path in ("/v1/envs", "/metrics", "/v1/status", "/v1/sessions/x", "/openapi.json"):
            assert ask("GET", f"{url}{path}", token="")[0] == 401
            assert ask("GET", f"{url}{path}", token="wrong")[0] == 401
        assert ask("POST", f"{url}/v1/batch", {}, token="")[0] == 401
        assert ask("GET", f"{url}/v1/envs", token=TOKEN)[0] == 200
    finally:
        end(process)


@pytest.mark.slow
def test_the_command_takes_its_settings_from_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.toml"
    env = 'name = "gridworld"\nprocesses = 1\nlimits = { gridworld = 1 }'
    recipe.write_text(f'[model]\npath = "none"\n[env]\n{env}\n[rollout]\nlease_s = 33.0\n')
    ready = tmp_path / "ready.json"
    argv = ["serve", "env", "--recipe", str(recipe), "--ready-file", str(ready)]
    process = subprocess.Popen([sys.executable, "-m", "asyncrl", *argv])
    try:
        url = wait_for_url(ready, running(process))
        status, session, _ = open_session(url)
        assert (status, session["lease_s"]) == (201, 33.0)
        assert open_session(url)[0] == 429
        assert len(ask("GET", f"{url}/v1/status")[1]["workers"]) == 1
    finally:
        end(process)


@pytest.mark.slow
def test_a_run_finds_the_environment_of_the_folder_it_was_started_in_from_any_other(tmp_path, monkeypatch):
    (tmp_path / "my_served_env.py").write_text(
        "from asyncrl.envs.gridworld.env import Gridworld\n\nclass Mine(Gridworld):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = load_config("gridworld_grpo", ["env.name=my_served_env:Mine", "env.processes=1"])
    (tmp_path / "config.json").write_text(config.model_dump_json())
    ready = tmp_path / "ready.json"
    argv = ["serve", "env", "--folder", str(tmp_path), "--ready-file", str(ready)]
    process = subprocess.Popen([sys.executable, "-m", "asyncrl", *argv], cwd="/")
    try:
        url = wait_for_url(ready, running(process))
        task = {"id": "a", "env": "my_served_env:Mine", "seed": 0}
        status, session, _ = ask("POST", f"{url}/v1/sessions", {"task": task, "config": {}})
        assert status == 201, session
    finally:
        end(process)


@pytest.mark.slow
def test_a_killed_worker_costs_its_sessions_a_502_and_shows_in_the_metrics(tmp_path):
    process, url = start(tmp_path, processes=2)
    try:
        paths, pids = zip(
            *((path, s["messages"][0]["content"]) for path, s in (open_troubled(url) for _ in range(4))),
            strict=True,
        )
        os.kill(int(pids[0]), signal.SIGKILL)
        lost = [path for path, pid in zip(paths, pids, strict=True) if pid == pids[0]]
        answers = {path: say(path, "hello") for path in paths}
        assert {path for path, (status, _) in answers.items() if status == 200} == set(paths) - set(lost)
        for path in lost:
            status, body = answers[path]
            assert (status, body["error"]["type"]) == (502, "InfrastructureError")
            assert re.search(f"pid {pids[0]}.* was killed by SIGKILL", body["error"]["message"])
        deadline = time.monotonic() + 60
        while metrics(url)["asyncrl_env_workers_ready"] < 2:
            assert time.monotonic() < deadline, "the worker is not replaced"
            time.sleep(0.05)
        found = metrics(url)
        assert found['asyncrl_env_workers_replaced_total{reason="crash"}'] == 1
        assert found["asyncrl_env_lost_total"] == 2
        assert pids[0] not in {open_troubled(url)[1]["messages"][0]["content"] for _ in range(4)}
    finally:
        end(process)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_service(tmp_path, how):
    process, url = start(tmp_path, processes=2)
    for _ in range(2):
        open_troubled(url)
    workers = [worker["pid"] for worker in ask("GET", f"{url}/v1/status")[1]["workers"]]
    process.send_signal(how)
    process.wait(30)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(workers) == 2
