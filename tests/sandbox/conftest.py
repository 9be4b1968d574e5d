from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from asyncrl.sandbox import backends
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import Probe
from tests.sandbox import sandbox_engine

WALLED = ["bubblewrap", "zygote", "nsjail", "landlock"]
LOCAL = ["subprocess", *WALLED, "gvisor", "docker"]


def run_async(body: Callable[[], Awaitable[Any]], timeout_s: float = 300) -> Any:
    """Run a test's body in an event loop of its own and end that loop's launcher."""

    async def whole() -> Any:
        try:
            return await asyncio.wait_for(body(), timeout_s)
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


@pytest.fixture(scope="session")
def engine() -> Iterator[sandbox_engine.Engine]:
    if reason := sandbox_engine.missing():
        pytest.skip(f"no container engine: {reason}")
    started = sandbox_engine.Engine()
    yield started
    started.stop()


@pytest.fixture
def use_engine(engine: sandbox_engine.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
    monkeypatch.setenv("ASYNCRL_SANDBOX_IMAGE", sandbox_engine.IMAGE)


def working(backend: str) -> str:
    """Return a backend that works on this machine; skip the test with the reason for another."""
    found: Probe = run_async(lambda: backends.probe(backend))
    if not found.works:
        pytest.skip(f"{backend}: {found.reason}")
    return backend


@pytest.fixture(params=WALLED)
def walled(request: pytest.FixtureRequest) -> str:
    """Each local backend that holds a program in with more than a process of its own."""
    return working(request.param)


@pytest.fixture(params=LOCAL)
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend of this machine, for the contract all of them keep."""
    name: str = request.param
    if name == "docker":
        request.getfixturevalue("use_engine")
    return working(name)
