"""Clients through outages: calls are repeated while a service restarts, and end with its address when it stays away."""

import asyncio
import socket
import threading

import numpy as np
import pytest

from asyncrl.credentials import read_credentials
from asyncrl.errors import InfrastructureError, InputError, UnavailableError
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.services.engine.control import IDLE_S
from asyncrl.services.engine.retrying import RetryingGenerator
from asyncrl.services.engine.service import EngineOptions, build_env
from asyncrl.services.http.client import HttpClient
from tests.app_thread import free_port
from tests.buffer.serving import ThreadService


def test_a_call_waits_for_a_service_that_is_not_there_yet(tmp_path):
    async def scenario():
        service = ThreadService(tmp_path)
        client = HttpClient(service.url, retry_s=30.0)
        try:
            await asyncio.to_thread(service.close)
            call = asyncio.ensure_future(client.get("/healthz", timeout_s=1.0))
            await asyncio.sleep(1.5)
            assert not call.done()
            call.cancel()
        finally:
            await client.close()

    asyncio.run(scenario())


def test_a_silent_service_is_asked_again_until_the_time_for_retries_is_over():
    listener = socket.create_server(("127.0.0.1", 0))
    taken = []
    accepting = threading.Thread(target=lambda: [taken.append(listener.accept()) for _ in range(2)])
    accepting.start()

    async def scenario():
        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", retry_s=0.3)
        with pytest.raises(UnavailableError, match=r"no answer within 0\.2 s"):
            await client.get("/healthz", timeout_s=0.2)
        await client.close()

    asyncio.run(scenario())
    accepting.join(10)
    assert len(taken) == 2
    for connection, _ in taken:
        connection.close()
    listener.close()


def test_a_call_that_must_not_be_repeated_is_not():
    async def scenario():
        client = HttpClient(f"http://127.0.0.1:{free_port()}", retry_s=30.0)
        with pytest.raises(UnavailableError):
            async with asyncio.timeout(10):
                await client.post("/v1/x", {}, repeat=False)
        await client.close()

    asyncio.run(scenario())


class Engines:
    """Fails the first `failures` requests."""

    def __init__(self, failures, error=InfrastructureError):
        self.left, self.error = failures, error

    async def generate(self, request):
        if self.left:
            self.left -= 1
            raise self.error("no engine")
        return Generated(request.token_ids, np.zeros(2, np.float32), np.zeros(2, np.int32), "stop")


REQUEST = GenerateRequest("r", np.array([1, 2], np.int32), 4)


def test_a_turn_waits_for_engines_that_come_back(monkeypatch):
    monkeypatch.setattr("asyncrl.services.engine.retrying.FIRST_PAUSE_S", 0.01)
    generated = asyncio.run(RetryingGenerator(Engines(3), wait_s=30.0).generate(REQUEST))
    assert generated.finish_reason == "stop"


def test_a_turn_fails_when_its_patience_is_over_or_the_request_itself_is_wrong():
    with pytest.raises(InfrastructureError, match="no engine"):
        asyncio.run(RetryingGenerator(Engines(10**6), wait_s=0.0).generate(REQUEST))
    engines = Engines(2, InputError)
    with pytest.raises(InputError):
        asyncio.run(RetryingGenerator(engines, wait_s=30.0).generate(REQUEST))
    assert engines.left == 1


def test_an_engine_keeps_idle_connections_far_longer_than_its_clients_use_them():
    env = build_env(EngineOptions("m"), read_credentials("the-token-of-this-run"), base={})
    assert int(env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) >= 5 * IDLE_S


def test_requests_that_wait_for_an_engine_together_are_two_lines_of_the_log(monkeypatch, caplog):
    monkeypatch.setattr("asyncrl.services.engine.retrying.FIRST_PAUSE_S", 0.01)
    retrying = RetryingGenerator(Engines(200), wait_s=30.0)

    async def scenario():
        await asyncio.gather(*(retrying.generate(REQUEST) for _ in range(40)))

    asyncio.run(scenario())
    first, last = [record.getMessage() for record in caplog.records]
    assert first == "no engine answers: no engine; trying again until that ends"
    assert last.startswith("no engine answers: again after ")
    assert last.endswith("in which 200 attempts failed")
