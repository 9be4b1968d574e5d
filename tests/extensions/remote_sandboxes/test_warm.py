"""Containers that wait for sessions: each serves one, dead ones none, and none outlives its process for long."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.remote_sandboxes import warm
from asyncrl.extensions.remote_sandboxes.docker import DockerSandbox, new_user
from asyncrl.extensions.remote_sandboxes.docker_api import DockerApi
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import Limits, SandboxSpec
from tests.sandbox.conftest import engine, run_async, use_engine  # noqa: F401

SPEC = SandboxSpec("bash")
OTHER = SandboxSpec("bash", Limits(open_files=65))


@pytest.fixture
def pool(use_engine, monkeypatch):  # noqa: F811
    """Two containers wait for each configuration, of a pool of the test's own."""
    monkeypatch.setenv(warm.VARIABLE, "2")
    monkeypatch.setattr(warm, "_swept", set())
    monkeypatch.setattr(warm.WarmContainers, "_shared", None)
    yield warm.WarmContainers.shared()
    warm.WarmContainers.shared().close()
    assert run_async(names) == set()


async def names():
    """Return the names of all containers that processes of this kind have started."""
    api = DockerApi(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    try:
        found = await api.call("GET", "/containers/json?all=true")
        return {entry["Names"][0].lstrip("/") for entry in found}
    finally:
        await api.close()


async def filled(pool):
    """Wait until nothing is being started any more; return what waits, by configuration."""
    await asyncio.gather(*pool._filling.values())
    return [[container.name for container in waiting] for waiting in pool._waiting.values()]


async def session(spec=SPEC):
    """Play a session that leaves files and a process; return its container and what it found."""
    box = DockerSandbox()
    await box.start(spec)
    look = "id -u; ls /work /tmp; echo x > /work/left; echo x > /tmp/left; sleep 100 & cat /work/left"
    result = await box.exec(["sh", "-c", look])
    name = box._container
    await box.stop()
    return name, result.text.splitlines()


def test_a_session_takes_one_that_waits_and_no_other_session_ever_gets_it(pool):
    async def body():
        seen, users, before = [], [], []
        for _ in range(4):
            name, lines = await session()
            ((*waiting,),) = await filled(pool)
            assert len(waiting) == 2 and name not in waiting and not set(seen) & {name}
            if seen:
                assert name in before
            before = waiting
            seen.append(name)
            users.append(lines[0])
            assert lines[1:] == ["/tmp:", "", "/work:", "x"]
        assert len(set(seen)) == 4 and len(set(users)) == 4
        # What has been used is gone; what waits is there.
        assert await names() == set(before)

    run_async(body)


def test_another_configuration_gets_containers_of_its_own(pool):
    async def body():
        await session()
        ours = set((await filled(pool))[0])
        name, _ = await session(OTHER)
        assert name not in ours
        box = DockerSandbox()
        await filled(pool)
        await box.start(OTHER)
        limit = (await box.exec(["sh", "-c", "ulimit -n"])).text
        await box.stop()
        assert limit == "65\n"
        assert set((await filled(pool))[0]) == ours

    run_async(body)


def test_sessions_at_once_get_different_ones_and_start_their_own_where_none_waits(pool):
    async def body():
        await session()
        await filled(pool)
        found = await asyncio.gather(*(session() for _ in range(4)))
        assert len({name for name, _ in found}) == len({lines[0] for _, lines in found}) == 4
        assert len((await filled(pool))[0]) == 2

    run_async(body)


def test_one_that_has_died_is_not_given_out(pool):
    async def body():
        await session()
        ((first, second),) = await filled(pool)
        api = DockerApi(os.environ["DOCKER_HOST"].removeprefix("unix://"))
        await api.call("POST", f"/containers/{first}/kill?signal=KILL")
        await api.close()
        assert (await session())[0] == second
        assert first not in (await filled(pool))[0]

    run_async(body)


def test_no_more_wait_than_fit_and_those_of_the_oldest_configuration_go_first(pool, monkeypatch):
    monkeypatch.setattr(warm, "MOST", 3)

    async def body():
        await session()
        old = set((await filled(pool))[0])
        await session(OTHER)
        (new,) = await filled(pool)
        assert len(new) == 2 and not old & await names()

    run_async(body)


def test_a_loop_that_ends_while_one_is_started_leaves_it_to_the_process(pool):
    run_async(session)  # ends at once, while others are being started
    assert pool._ours
    pool.close()
    assert run_async(names) == set()


def test_without_the_setting_none_waits(pool, monkeypatch):
    monkeypatch.delenv(warm.VARIABLE)
    run_async(session)
    assert run_async(names) == set() and not pool._waiting


@pytest.mark.parametrize("text", ["-1", "many", "65", ""])
def test_a_wrong_number_is_refused(pool, monkeypatch, text):
    monkeypatch.setenv(warm.VARIABLE, text)
    with pytest.raises(ConfigError, match="ASYNCRL_SANDBOX_WARM: must be a whole number from 0 to 64, got"):
        run_async(session)


def test_an_engine_that_cannot_start_one_has_none_wait_and_the_session_says_why(pool):
    path = os.environ["DOCKER_HOST"].removeprefix("unix://")

    async def body():
        pool.fill(path, {"Image": "localhost/no-such:1", "User": ""}, 2, new_user)
        assert await filled(pool) == [[]]
        async with asyncio.timeout(60):
            with pytest.raises(InfrastructureError, match="no-such"):
                await open_sandbox("docker", SandboxSpec("bash", image="localhost/no-such:1"))

    run_async(body)


# -- ends -------------------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, os, signal, sys
from tests.extensions.remote_sandboxes.test_warm import SPEC, DockerSandbox, filled, warm

async def whole():
    box = DockerSandbox()
    await box.start(SPEC)
    found = await filled(warm.WarmContainers.shared())
    print(box._container, *found[0], flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    await box.stop()

asyncio.run(whole())
"""


def other_process(end):
    """Return the names of the session's container and of those that waited in a process that has ended so."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, end], capture_output=True, text=True, check=False)
    assert ran.returncode == (-signal.SIGKILL if end == "killed" else 0), ran.stderr
    return set(ran.stdout.split())


def test_a_process_that_ends_leaves_none(pool):
    assert len(other_process("ended")) == 3
    assert run_async(names) == set()


def test_those_of_a_killed_process_go_with_the_next_ones_first_session(pool):
    left = other_process("killed")
    assert len(left) == 3 and run_async(names) == left

    async def body():
        await session()
        return await names()

    assert not run_async(body) & left


def test_a_process_knows_itself_and_judges_no_other_place():
    own = warm.owner()
    place, pid, started = own.rsplit("/", 2)
    assert int(pid) == os.getpid() and not warm.is_deserted(own)
    assert warm.is_deserted(f"{place}/{pid}/{int(started) + 1}")
    assert warm.is_deserted(f"{place}/999999999/{started}")
    for label in (f"{place}0/{pid}/1", f"x/1/{pid}/1", "", "x", f"{place}/{pid}/"):
        assert not warm.is_deserted(label)
