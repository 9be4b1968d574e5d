"""A connection whose request does not arrive is closed; one that is kept, or whose answer takes long, is not."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

from asyncrl import http_limits
from asyncrl.services.http.app import create_app
from tests.app_thread import AppThread
from tests.credentials import RUN
from tests.waiting import wait_for_url

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.setattr(http_limits, "HEADERS_S", 1.0)
    app = create_app("test", RUN.access("env"), open_paths=("/healthz", "/slow"))

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(2.5)
        return "late"

    served = AppThread(app, tmp_path)
    yield urlsplit(served.url)
    served.close()


def connect(service):
    return socket.create_connection((service.hostname, service.port), timeout=60.0)


def answer(connection, end=b"}"):
    found = b""
    while not found.endswith(end):
        part = connection.recv(65536)
        assert part, "the connection was closed"
        found += part
    return found


@pytest.mark.parametrize("begun", [b"", b"G", HEAD, b"POST /v1/lease HTTP/1.1\r\nX-A: b\r\nX-"])
def test_a_connection_whose_request_does_not_arrive_is_closed(service, begun):
    with connect(service) as connection:
        connection.sendall(begun)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_so_is_one_whose_later_request_stops_halfway(service):
    with connect(service) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert b"200 OK" in answer(connection)
        connection.sendall(HEAD)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_a_connection_that_is_kept_or_waits_for_its_answer_stays_open(service):
    with connect(service) as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in answer(connection, b'"late"')
        # Longer than headers may take: no request has begun.
        connection.settimeout(2.0)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60.0)
        connection.sendall(HEAD + b"\r\n")
        assert b"200 OK" in answer(connection)


SERVED = """
import sys
from fastapi import Request
from asyncrl import http_checks, http_limits
from asyncrl.services.http import serving
from asyncrl.services.http.app import create_app, serve
from tests.credentials import RUN
http_limits.HEADERS_S = http_checks.FIRST_BYTES_S = 3.0
serving.KEEP_ALIVE_S = 3
app = create_app("test", RUN.access("env"), open_paths=("/healthz", "/length"))
@app.post("/length")
async def length(request: Request) -> int:
    return len(await request.body())
serve(app, ready_file=sys.argv[1])
"""


def test_what_arrives_while_a_service_is_suspended_is_answered_however_long_that_takes(tmp_path):
    """A connection that is kept between two requests, one that is new, and one halfway through headers or body."""
    ready = tmp_path / "ready.json"
    post = b"POST /length HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    whole = {
        "kept": (HEAD + b"\r\n", HEAD + b"\r\n"),
        "new": (b"", HEAD + b"\r\n"),
        "headers": (HEAD[:30], HEAD[30:] + b"\r\n"),
        "body": (post + b"[1,2", b",3,4]"),
    }
    with contextlib.ExitStack() as held:
        process = held.enter_context(subprocess.Popen([sys.executable, "-c", SERVED, ready]))
        held.callback(process.kill)
        service = urlsplit(wait_for_url(ready, lambda: process.poll() is None))
        connections = {name: held.enter_context(connect(service)) for name in whole}
        for name, connection in connections.items():
            connection.sendall(whole[name][0])
        assert b"200 OK" in answer(connections["kept"])
        process.send_signal(signal.SIGSTOP)
        for name, connection in connections.items():
            connection.sendall(whole[name][1])
        time.sleep(5.0)
        process.send_signal(signal.SIGCONT)
        ends = {"body": b"9"}
        found = {name: answer(one, ends.get(name, b"}")) for name, one in connections.items()}
    assert {name: text.split(b"\r\n")[0] for name, text in found.items()} == dict.fromkeys(
        whole, b"HTTP/1.1 200 OK"
    )


@pytest.mark.parametrize("authorization", [b"", b"Authorization: Bearer x\r\n"])
@pytest.mark.parametrize("head", [b"Content-Length: 33554432\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_client_that_sends_a_long_body_before_it_reads_gets_the_refusal(service, head, authorization):
    # Closed at once, the connection would be reset, and the answer lost with it.
    with connect(service) as connection:
        connection.sendall(
            b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + authorization
            + head
            + b"\r\n"
        )
        piece = b" " * 2**20 if b"Length" in head else b"100000\r\n" + b" " * 2**20 + b"\r\n"
        for _ in range(32):
            connection.sendall(piece)
        if b"chunked" in head:
            connection.sendall(b"0\r\n\r\n")
        status = connection.recv(65536).partition(b"\r\n")[0]
    assert status in (b"HTTP/1.1 413 Request Entity Too Large", b"HTTP/1.1 413 Content Too Large") or (
        b"chunked" in head and status == b"HTTP/1.1 401 Unauthorized"
    )


def test_a_client_that_waits_to_be_told_to_go_on_is_not_told_to_after_a_refusal(service):
    with connect(service) as connection:
        connection.sendall(
            b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 33554432\r\nExpect: 100-continue\r\n\r\n"
        )
        found = b""
        while part := connection.recv(65536):
            found += part
    assert found.startswith(b"HTTP/1.1 413") and b"100 Continue" not in found
