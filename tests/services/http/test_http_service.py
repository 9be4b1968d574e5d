"""The shared plumbing refuses what it must, over a real socket, and shuts down in order."""

import asyncio
import contextlib
import errno
import http.client
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from urllib.parse import urlsplit

import pytest
from starlette.responses import JSONResponse

from asyncrl.credentials import authorization
from asyncrl.errors import ConfigError, ConflictError, InputError, StaleError, UnavailableError
from asyncrl.services.http import client as client_module
from asyncrl.services.http.app import add_hot_route, create_app, serve
from asyncrl.services.http.client import HttpClient
from tests.app_thread import AppThread
from tests.credentials import AUTHORIZED, JSON, RUN, TOKEN
from tests.waiting import running, wait_until


class Teapot(ConflictError):
    """An error of the service's own."""


ERRORS = {
    "input": InputError("x must be 1"),
    "stale": StaleError("old"),
    "full": UnavailableError("full", retry_after_s=3),
    "own": Teapot("short and stout"),
    "bug": ZeroDivisionError("secret"),
    "no disk": OSError(errno.EIO, "Input/output error"),
    "no file": FileNotFoundError(errno.ENOENT, "secret"),
}


def make_app():
    app = create_app(
        "test", RUN.access("env"), {"/length": {"worker"}}, max_body_bytes=1000, statuses={Teapot: 418}
    )

    @app.get("/raise/{name}")
    async def fail(name: str):
        raise ERRORS[name]

    @app.post("/length")
    async def length(numbers: list[int]) -> int:
        return len(numbers)

    @app.post("/wait")
    async def wait() -> str:
        await app.state.stopping.wait()
        return "stopped"

    return app


class Served(AppThread):
    """An app served from a thread, with requests to it."""

    def __init__(self, app, folder, headers=AUTHORIZED):
        self.headers = headers
        super().__init__(app, folder)

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        try:
            connection.request(method, path, body, self.headers | (headers or {}))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@pytest.fixture
def open_service(tmp_path):
    served = Served(make_app(), tmp_path)
    yield served
    served.close()


@pytest.fixture
def closed_service(tmp_path):
    served = Served(make_app(), tmp_path, headers={})
    yield served
    served.close()


@pytest.mark.parametrize(
    ("name", "status", "kind", "message"),
    [
        ("input", 400, "InputError", "x must be 1"),
        ("stale", 409, "StaleError", "old"),
        ("full", 503, "UnavailableError", "full"),
        ("own", 418, "ConflictError", "short and stout"),
        ("no%20disk", 503, "OutageError", "OSError: [Errno 5] Input/output error"),
        ("no%20file", 500, "InternalError", "unexpected FileNotFoundError; see the service's log"),
        ("bug", 500, "InternalError", "unexpected ZeroDivisionError; see the service's log"),
    ],
)
def test_errors_go_by_their_shared_name_and_bugs_keep_their_secrets(
    open_service, name, status, kind, message
):
    got, body = open_service.request("GET", f"/raise/{name}")
    assert (got, body["error"]["type"], body["error"]["message"]) == (status, kind, message)


def test_every_route_but_health_asks_for_the_token(closed_service):
    assert closed_service.request("GET", "/healthz")[0] == 200
    kind = {"Content-Type": "application/json"}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        assert closed_service.request("POST", "/length", b"[1]", kind | headers)[0] == 401
    assert closed_service.request("POST", "/length", b"[1]", JSON) == (200, 1)


def test_a_role_calls_only_what_is_its_own(closed_service):
    def ask(credentials, kind="env"):
        headers = {"Content-Type": "application/json"} | authorization(credentials.bearer(kind))
        return closed_service.request("POST", "/length", b"[1]", headers)[0]

    assert ask(RUN) == 200
    assert ask(RUN.issue("worker", "w")) == 200
    assert ask(RUN.issue("trainer")) == 401
    # Tokens for services of another kind are none here, those of another role are not for this route.
    assert ask(RUN.issue("worker", "w"), "buffer") == 401
    assert (
        closed_service.request("GET", "/raise/input", None, authorization(RUN.issue("worker").bearer("env")))[
            0
        ]
        == 403
    )


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.0.0.1", "127.0.0.1.evil.example", ""]
)
def test_a_page_of_a_browser_gets_nothing(closed_service, host):
    for path in ("/healthz", "/raise/input"):
        assert closed_service.request("GET", path, None, AUTHORIZED | {"Host": host})[0] == 403
        assert closed_service.request("GET", path, None, AUTHORIZED | {"Origin": "null"})[0] == 403
    assert closed_service.request("GET", "/healthz", None, {"Host": "localhost:1"})[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "text/json"])
def test_a_body_of_another_type_is_refused(closed_service, kind):
    headers = AUTHORIZED | {"Content-Type": kind}
    assert closed_service.request("POST", "/length", b"[1]", headers)[0] == 415


def test_a_body_that_stops_coming_is_answered_408(open_service, monkeypatch):
    monkeypatch.setattr("asyncrl.http_checks.FIRST_BYTES_S", 0.2)

    def slow():
        yield b"["
        time.sleep(1.5)
        yield b"1]"

    with contextlib.suppress(BrokenPipeError):
        # Where the answer was not first, the connection was closed under what came late.
        assert open_service.request("POST", "/length", slow(), JSON)[0] == 408
    assert open_service.request("POST", "/length", b"[1]", JSON) == (200, 1)


def test_a_body_of_many_values_is_refused_before_any_is_built(open_service, monkeypatch):
    monkeypatch.setattr("asyncrl.http_checks.MAX_OBJECTS", 100)
    assert open_service.request("POST", "/length", b"[" + b"1," * 99 + b"1]", JSON)[0] == 200
    assert open_service.request("POST", "/length", b"[" + b"1," * 200 + b"1]", JSON)[0] == 413
    assert open_service.request("POST", "/length", b"[" + b"{}," * 60 + b"{}]", JSON)[0] == 413


def test_json_is_counted_whatever_else_its_type_says(open_service, monkeypatch):
    monkeypatch.setattr("asyncrl.http_checks.MAX_OBJECTS", 100)
    many = b"[" + b"1," * 200 + b"1]"
    named = AUTHORIZED | {"Content-Type": "application/json; profile=application/msgpack"}
    assert open_service.request("POST", "/length", many, named)[0] == 413
    host = urlsplit(open_service.url).netloc
    with contextlib.closing(http.client.HTTPConnection(host, timeout=10)) as connection:
        connection.putrequest("POST", "/length")
        kinds = [("Content-Type", "application/json"), ("Content-Type", "application/msgpack")]
        for name, value in (*AUTHORIZED.items(), *kinds, ("Content-Length", str(len(many)))):
            connection.putheader(name, value)
        connection.endheaders(many)
        assert connection.getresponse().status == 415


def test_a_malformed_body_is_answered_400_with_the_field(open_service):
    json_type = {"Content-Type": "application/json"}
    status, body = open_service.request("POST", "/length", b'[1, "\\ud800"]', json_type)
    assert status == 400
    assert "body.1" in body["error"]["message"]
    assert open_service.request("POST", "/length", b"{{", json_type)[0] == 400


def test_a_large_body_is_answered_413_with_and_without_its_length(open_service):
    assert open_service.request("POST", "/length", b" " * 1001, JSON)[0] == 413
    chunks = iter([b" " * 600, b" " * 600])
    assert open_service.request("POST", "/length", chunks, {"Content-Type": "application/json"})[0] == 413


def test_large_headers_are_answered_431(open_service):
    assert open_service.request("GET", "/healthz", headers={"X-Long": "a" * 40_000})[0] in (400, 431)


def test_a_port_in_use_is_named(open_service):
    port = urlsplit(open_service.url).port
    with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use"):
        serve(make_app(), port=port)


def test_a_dead_background_task_ends_the_service():
    async def die():
        await asyncio.sleep(0)
        raise ValueError("worn out")

    with pytest.raises(ValueError, match="worn out"):
        serve(create_app("test", RUN.access("env"), background={"mayfly": die}))


def test_sigterm_ends_waiting_requests_and_the_exit_code_is_0(tmp_path):
    script = """
        import sys
        from asyncrl.services.http.app import create_app, serve
        from asyncrl.credentials import own_credentials
        app = create_app("test", own_credentials().access("env"))
        @app.post("/wait")
        async def wait() -> str:
            await app.state.stopping.wait()
            return "stopped"
        serve(app, ready_file=sys.argv[1])
    """
    ready = tmp_path / "ready.json"
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), str(ready)])
    try:
        wait_until(ready.exists, running(process))
        announced = json.loads(ready.read_text())
        assert announced["pid"] == process.pid
        connection = http.client.HTTPConnection(urlsplit(announced["url"]).netloc, timeout=20)
        connection.request("POST", "/wait", headers=AUTHORIZED)
        threading.Timer(0.2, os.kill, (process.pid, signal.SIGTERM)).start()
        assert connection.getresponse().read() == b'"stopped"'
        assert process.wait(20) == 0
        assert not ready.exists()
    finally:
        process.kill()


def test_larger_bodies_are_taken_where_that_is_said(tmp_path):
    app = create_app("test", RUN.access("env"), max_body_bytes=1000, larger_bodies={"/size": 5000})

    async def size(request):
        return JSONResponse(len(await request.body()))

    for path in ("/size", "/other"):
        add_hot_route(app, path, size)
    served = Served(app, tmp_path, JSON)
    try:
        assert served.request("POST", "/size", json.dumps("x" * 4998)) == (200, 5000)
        assert served.request("POST", "/size", json.dumps("x" * 4999))[0] == 413
        assert served.request("POST", "/other", json.dumps("x" * 999))[0] == 413
    finally:
        served.close()


def test_a_large_body_has_the_time_that_its_transfer_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "SLOWEST_BYTES_PER_S", 100)
    app = create_app("test", RUN.access("env"))

    async def late(request):
        await asyncio.sleep(0.4)
        return JSONResponse(len(await request.body()))

    add_hot_route(app, "/late", late)
    served = Served(app, tmp_path)

    async def call():
        client = HttpClient(served.url, TOKEN)
        try:
            return await client.post("/late", bytes(5000), timeout_s=0.1, repeat=False)
        finally:
            await client.close()

    try:
        assert asyncio.run(call()) == 5000
    finally:
        served.close()
