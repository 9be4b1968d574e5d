"""Children that die or fall silent come back where they were; those that cannot are given up by name."""

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request

import pytest

from asyncrl.errors import UnavailableError
from asyncrl.launch.processes import Family, spawn
from asyncrl.launch.signs import FileSigns, HttpSigns
from asyncrl.launch.supervise import MAX_DEATHS, Supervisor

START_S = 60.0


@pytest.fixture
def family(tmp_path):
    (tmp_path / "config.json").write_text('{"model": {"path": "m"}, "env": {"name": "gridworld"}}')
    made = Family(tmp_path)
    yield made
    made.stop()


def supervised_buffer(family, tmp_path, silence_s=30.0):
    child = family.start("buffer", ["serve", "buffer", "--folder", str(tmp_path)])
    family.wait_ready(child, START_S)
    supervisor = Supervisor(family, tmp_path / "restarts.jsonl", silence_s)
    supervisor.watch(child, HttpSigns(child, "/healthz"), START_S)
    return supervisor, child


async def until(condition):
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def healthy(child):
    try:
        with urllib.request.urlopen(f"{child.url}/healthz", timeout=1) as reply:
            return reply.status == 200
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "why"), [("SIGKILL", "killed by signal 9"), ("SIGSTOP", "no sign of life")]
)
def test_a_dead_or_silent_child_serves_again_at_its_address(family, tmp_path, number, why):
    supervisor, child = supervised_buffer(family, tmp_path, silence_s=30.0 if number == "SIGKILL" else 6.0)
    url, pid = child.url, child.process.pid

    async def hurt():
        child.process.send_signal(getattr(signal, number))
        await until(lambda: (tmp_path / "restarts.jsonl").exists())

    asyncio.run(supervisor.beside(hurt()))
    assert child.url == url
    assert child.process.pid != pid
    assert healthy(child)
    event = json.loads((tmp_path / "restarts.jsonl").read_text())
    assert event["name"] == "buffer"
    assert why in event["why"]
    assert event["down_s"] >= 0
    assert supervisor.restarts() == {"buffer": 1}


def test_work_beside_ends_with_its_own_result_or_error(family, tmp_path):
    supervisor = Supervisor(family, tmp_path / "restarts.jsonl", 30.0)

    async def answer():
        return 42

    async def fail():
        raise KeyError("mine")

    assert asyncio.run(supervisor.beside(answer())) == 42
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(supervisor.beside(fail()))


class Never:
    """Signs of a child that never gets ready."""

    def forget(self):
        pass

    def ready(self):
        return False

    def steady(self, serving_s):
        return False

    async def alive(self):
        return True


def script(family, name, code):
    """A child that runs Python code instead of a role."""
    child = family.start(name, ["--version"], ready=False)
    child.process.wait(START_S)
    child.command = [sys.executable, "-c", code]
    child.process = spawn(child.command, child.log, {})
    return child


@pytest.mark.slow
def test_a_child_that_dies_again_and_again_is_given_up_with_the_end_of_its_log(family, tmp_path, monkeypatch):
    monkeypatch.setattr("asyncrl.launch.supervise.LONGEST_PAUSE_S", 0.1)
    child = script(family, "role", "import sys; print('out of luck'); sys.exit(7)")
    supervisor = Supervisor(family, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S)
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(supervisor.beside(asyncio.sleep(60)))
    assert f"role ended with exit code 7 {MAX_DEATHS} times in a row; see " in str(caught.value)
    assert "out of luck" in str(caught.value)


@pytest.mark.parametrize("code", [2, 3])
def test_a_trainer_that_ended_on_purpose_is_not_started_again(family, tmp_path, code):
    child = script(family, "trainer", f"print('the reason'); raise SystemExit({code})")
    supervisor = Supervisor(family, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S, ends=True)
    with pytest.raises(
        UnavailableError, match=rf"trainer ended with exit code {code}; see (.|\n)*the reason"
    ):
        asyncio.run(supervisor.beside(asyncio.sleep(60)))


def test_a_trainer_that_has_finished_is_done(family, tmp_path):
    child = script(family, "trainer", "pass")
    supervisor = Supervisor(family, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S, ends=True)

    async def finish():
        await until(lambda: supervisor.done(child))

    asyncio.run(supervisor.beside(finish()))
    assert supervisor.restarts() == {}


def test_files_are_signs_of_life_while_all_of_them_change(tmp_path):
    height = [0]
    beats = [tmp_path / "0.beat", tmp_path / "1.beat"]
    signs = FileSigns(tmp_path / "ready", beats, lambda: height[0])

    def alive():
        return asyncio.run(signs.alive())

    assert not signs.ready()
    assert not alive()
    for number, beat in enumerate(beats):
        beat.write_text(str(number))
    assert alive()
    assert not alive()
    os.utime(beats[0], ns=(1, 1))
    assert not alive()
    os.utime(beats[1], ns=(2, 2))
    assert alive()
    assert not signs.steady(1000.0)
    height[0] = 3
    assert signs.steady(0.0)
    assert not signs.steady(0.0)
    (tmp_path / "ready").touch()
    assert signs.ready()
    signs.forget()
    assert not signs.ready()
    assert not beats[0].exists()
