"""Children that die or fall silent come back where they were; those that cannot are given up by name."""

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request

import pytest

from asyncrl.errors import StorageError, UnavailableError
from asyncrl.hosts.local import spawn
from asyncrl.launch.processes.health_probes import EngineProbe, HeartbeatProbe, HttpProbe
from asyncrl.launch.processes.supervise import MAX_DEATHS, Supervisor

START_S = 300.0


def supervised_buffer(process_group, tmp_path, silence_s=30.0):
    child = process_group.start("buffer", ["serve", "buffer", "--folder", str(tmp_path)])
    process_group.wait_ready(child, START_S)
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", silence_s)
    supervisor.watch(child, HttpProbe(child, "/healthz"), START_S)
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
def test_a_dead_or_silent_child_serves_again_at_its_address(process_group, tmp_path, number, why):
    supervisor, child = supervised_buffer(
        process_group, tmp_path, silence_s=30.0 if number == "SIGKILL" else 6.0
    )
    url, pid = child.url, child.popen.pid

    async def hurt():
        child.popen.send_signal(getattr(signal, number))
        await until(lambda: (tmp_path / "restarts.jsonl").exists())

    asyncio.run(supervisor.run(hurt()))
    assert child.url == url
    assert child.popen.pid != pid
    assert healthy(child)
    event = json.loads((tmp_path / "restarts.jsonl").read_text())
    assert event["name"] == "buffer"
    assert why in event["why"]
    assert event["down_s"] >= 0
    assert supervisor.restarts() == {"buffer": 1}


def test_supervised_work_ends_with_its_own_result_or_error(process_group, tmp_path):
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)

    async def answer():
        return 42

    async def fail():
        raise KeyError("mine")

    assert asyncio.run(supervisor.run(answer())) == 42
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(supervisor.run(fail()))


class Never:
    """The probe of a process that never gets ready."""

    def hung(self):
        return ""

    def meter(self):
        return None

    def reset(self):
        pass

    def ready(self):
        return False

    def stable(self, serving_s):
        return False

    async def alive(self):
        return True


def script(process_group, name, code):
    """A child that runs Python code instead of a role."""
    child = process_group.start(name, ["--version"], ready=False)
    child.popen.wait(START_S)
    child.command = [sys.executable, "-c", code]
    child.popen = spawn(child.command, child.log, {})
    return child


def supervise(supervisor, seconds=60):
    """Supervise until a child is given up; return why."""
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(supervisor.run(asyncio.sleep(seconds)))
    return caught.value


def starts(child):
    return child.log.read_text().count("alive")


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr("asyncrl.launch.processes.supervise.LONGEST_PAUSE_S", 0.05)


@pytest.mark.slow
def test_a_child_that_dies_again_and_again_is_given_up_with_the_error_it_ended_with(
    process_group, tmp_path, no_pause
):
    child = script(process_group, "role", "print('alive', flush=True); raise LookupError('out of luck')")
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S)
    told = str(supervise(supervisor))
    assert told.startswith(
        f"role ended with exit code 1: LookupError: out of luck; {MAX_DEATHS} times in a row; see {child.log}\n"
    )
    assert starts(child) == MAX_DEATHS


@pytest.mark.slow
def test_the_error_is_on_the_console_at_every_death(process_group, tmp_path, no_pause, caplog):
    child = script(process_group, "role", "raise LookupError('out of luck')")
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S)
    supervise(supervisor)
    line = "role ended with exit code 1: LookupError: out of luck; starting it again"
    assert [record.getMessage() for record in caplog.records] == [line] * (MAX_DEATHS - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "ends"), [(2, True), (3, True), (3, False)])
def test_a_child_that_ended_on_purpose_is_not_started_again(process_group, tmp_path, code, ends):
    child = script(
        process_group,
        "role",
        f"import sys; print('alive'); print('asyncrl: the reason', file=sys.stderr); raise SystemExit({code})",
    )
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S, ends=ends)
    assert str(supervise(supervisor)).startswith(f"role ended with exit code {code}: the reason; see ")
    assert starts(child) == 1


@pytest.mark.slow
def test_a_service_that_refuses_its_configuration_twice_is_given_up(process_group, tmp_path, no_pause):
    code = (
        "import sys; print('alive'); print('asyncrl: env.name: wrong', file=sys.stderr); raise SystemExit(2)"
    )
    child = script(process_group, "env", code)
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S)
    assert "env ended with exit code 2: env.name: wrong; twice in a row" in str(supervise(supervisor))
    assert starts(child) == 2


@pytest.mark.slow
def test_a_service_whose_address_is_taken_is_tried_again(process_group, tmp_path, no_pause):
    told = "asyncrl: cannot listen on 127.0.0.1:7: Address already in use"
    code = f"import sys; print('alive'); print({told!r}, file=sys.stderr); raise SystemExit(2)"
    child = script(process_group, "env", code)
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S)
    assert f"{MAX_DEATHS} times in a row" in str(supervise(supervisor))
    assert starts(child) == MAX_DEATHS


@pytest.mark.slow
def test_memory_that_is_lacking_twice_ends_the_run(process_group, tmp_path, no_pause):
    child = script(process_group, "trainer", "print('alive', flush=True); raise MemoryError('8 GiB')")
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S, ends=True)
    told = str(supervise(supervisor))
    assert "MemoryError: 8 GiB; memory ran out twice; lower what this process needs" in told
    assert starts(child) == 2


@pytest.mark.slow
def test_a_full_disk_ends_the_run_though_the_log_could_not_say_so(process_group, tmp_path, small_disk):
    child = script(process_group, "trainer", "print('alive', flush=True); raise SystemExit(1)")
    (small_disk / "large").write_bytes(bytes(900_000))
    supervisor = Supervisor(process_group, small_disk / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S, ends=True)
    told = supervise(supervisor)
    assert isinstance(told, StorageError)
    assert f"{small_disk}: No space left on device; free some space there" in str(told)
    assert starts(child) == 1


class Always(Never):
    """The probe of a process that is ready at once and stable, so that its deaths do not count."""

    def ready(self):
        return True

    def stable(self, serving_s):
        return True


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True])
def test_deaths_without_any_progress_of_the_run_end_it(process_group, tmp_path, no_pause, monkeypatch, grows):
    monkeypatch.setattr("asyncrl.launch.processes.supervise.MAX_DEATHS_WITHOUT_PROGRESS", 8)
    monkeypatch.setattr("asyncrl.launch.processes.supervise.TICK_S", 0.01)
    child = script(
        process_group, "env", "import time; print('alive', flush=True); time.sleep(0.3); raise SystemExit(1)"
    )
    supervisor = Supervisor(
        process_group, tmp_path / "restarts.jsonl", 30.0, progress=lambda: starts(child) if grows else 5
    )
    supervisor.watch(child, Always(), START_S)

    async def watch():
        await until(lambda: starts(child) >= 12)

    if grows:
        asyncio.run(supervisor.run(watch()))
    else:
        assert "processes died 8 times without any progress of the run" in str(supervise(supervisor))
        assert starts(child) == 8


@pytest.mark.slow
def test_a_trainer_that_has_finished_is_done(process_group, tmp_path):
    child = script(process_group, "trainer", "pass")
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    supervisor.watch(child, Never(), START_S, ends=True)

    async def finish():
        await until(lambda: supervisor.done(child))

    asyncio.run(supervisor.run(finish()))
    assert supervisor.restarts() == {}


HANGS = """
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from asyncrl.services.trainer.heartbeat import Heartbeat
from asyncrl.train.engine.progress import Progress

folder = Path(FOLDER)
heartbeat, progress = Heartbeat(folder / "0.beat"), Progress()
(folder / "ready").touch()
heartbeat.watch(progress, 1.0)
# A collective that another rank never joins.
store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=timedelta(hours=1))
"""


@pytest.mark.slow
def test_a_trainer_that_hangs_in_a_collective_is_killed_and_its_log_says_where(process_group, tmp_path):
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 3.0)
    child = script(process_group, "trainer", HANGS.replace("FOLDER", repr(str(tmp_path))))
    probe = HeartbeatProbe(tmp_path / "ready", [tmp_path / "0.beat"], lambda: 0)
    supervisor.watch(child, probe, START_S, ends=True, serving=False)
    first = child.popen.pid

    async def restarted():
        await until(lambda: child.popen.pid != first)

    asyncio.run(supervisor.run(restarted()))
    assert supervisor.supervised[0].why == (
        "hangs: rank 0 made no progress for what follows from train.stall_timeout_s (see its log) and was killed"
    )
    log = child.log.read_text()
    assert "the trainer hangs: no progress within 1 s, which follows from train.stall_timeout_s" in log
    assert "in init_process_group" in log


def test_files_are_signs_of_life_while_all_of_them_change(tmp_path):
    height = [0]
    heartbeats = [tmp_path / "0.beat", tmp_path / "1.beat"]
    probe = HeartbeatProbe(tmp_path / "ready", heartbeats, lambda: height[0])

    def alive():
        return asyncio.run(probe.alive())

    assert not probe.ready()
    assert not alive()
    for number, beat in enumerate(heartbeats):
        beat.write_text(str(number))
    assert alive()
    assert not alive()
    os.utime(heartbeats[0], ns=(1, 1))
    assert not alive()
    os.utime(heartbeats[1], ns=(2, 2))
    assert alive()
    assert not probe.stable(1000.0)
    height[0] = 3
    assert probe.stable(0.0)
    assert not probe.stable(0.0)
    (tmp_path / "ready").touch()
    assert probe.ready()
    probe.reset()
    assert not probe.ready()
    assert not heartbeats[0].exists()


@pytest.mark.slow
def test_a_trainer_that_shares_a_gpu_ends_with_its_engine_and_starts_when_that_serves(
    process_group, tmp_path
):
    """Else what it holds of the memory would keep the engine from starting, until the run is given up."""
    supervisor, engine = supervised_buffer(process_group, tmp_path)  # any service stands for the engine
    code = f"""
import os, pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
print("engine serves" if (folder / "endpoints" / "buffer.json").exists() else "engine is away", flush=True)
(folder / "ready").touch()
while True:
    (folder / "0.beat").touch()
    time.sleep(0.05)
"""
    child = script(process_group, "trainer", code)
    probe = HeartbeatProbe(tmp_path / "ready", [tmp_path / "0.beat"], lambda: 0)
    supervisor.watch(child, probe, START_S, ends=True, serving=False, after=[engine])
    first = child.popen.pid

    async def hurt():
        await until(probe.ready)
        engine.popen.send_signal(signal.SIGKILL)
        await until(lambda: child.popen.pid != first and probe.ready())
        await until(lambda: supervisor.supervised[1].state == "serving")

    asyncio.run(supervisor.run(hurt()))
    assert healthy(engine)
    assert child.log.read_text().splitlines()[-2:] == ["engine serves", "engine serves"]
    events = [json.loads(line) for line in (tmp_path / "restarts.jsonl").read_text().splitlines()]
    assert [event["name"] for event in events] == ["buffer", "trainer"]
    assert events[1]["why"] == "was ended with buffer, with which it shares a GPU"
    # It is no death of the trainer's own.
    assert supervisor.supervised[1].deaths == 0


SILENT = """
import http.server, json, msgpack, pathlib, subprocess, sys, threading, time
folder, what, ready = pathlib.Path(FOLDER), WHAT, sys.argv[sys.argv.index("--ready-file") + 1]
started = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        silent_s = time.monotonic() - started
        if self.path == "/asyncrl/v1/alive":
            # The server of an engine answers whatever its core does.
            said = {"core_silent_s": silent_s, "core_bytes": 0, "core_cpu_s": silent_s if what == "computes" else 1.0}
        elif what == "computes":
            while True:
                sum(range(10**6))
        else:
            time.sleep(3600)
        self.send_response(200)
        self.send_header("Content-Type", "application/msgpack")
        self.end_headers()
        self.wfile.write(msgpack.packb(said))
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
(folder / "0.beat").touch()
(folder / "ready").touch()
(folder / "url").write_text(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "pid": 1}))
(folder / "url").replace(ready)  # at once, as services do
if KIND == "trainer":
    while what == "computes":
        sum(range(10**6))
    time.sleep(3600)
server.serve_forever()
"""


def probe_of(kind, child, folder):
    if kind == "trainer":
        return HeartbeatProbe(folder / "ready", [folder / "0.beat"], lambda: 0)
    return EngineProbe(child, "") if kind == "engine" else HttpProbe(child, "/healthz")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["service", "engine", "trainer"])
@pytest.mark.parametrize("what", ["computes", "sleeps"])
def test_a_process_that_does_not_answer_is_killed_where_it_makes_no_progress_and_nowhere_else(
    process_group, tmp_path, caplog, kind, what
):
    # With 60 s it is seen for five minutes that what computes lives (docs/reliability.md).
    silence_s = float(os.environ.get("ASYNCRL_TEST_SILENCE_S", 6.0))
    code = (
        SILENT.replace("FOLDER", repr(str(tmp_path))).replace("WHAT", repr(what)).replace("KIND", repr(kind))
    )
    child = process_group.start("role", ["--version"], ready=True)
    child.popen.wait(START_S)
    child.command = [sys.executable, "-c", code, "--ready-file", str(child.ready_file)]
    child.popen = spawn(child.command, child.log, {})
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", silence_s)
    supervisor.watch(child, probe_of(kind, child, tmp_path), START_S, serving=False)
    first = child.popen.pid

    async def watch():
        await until(lambda: supervisor.serves(child))
        if what == "computes":
            # It is said once, and then nothing but time shows that it is not killed.
            await until(lambda: "it computes, and is left to it" in caplog.text)
            await asyncio.sleep((4 if silence_s > 6 else 2) * silence_s)
            assert child.popen.pid == first
        else:
            await until(lambda: child.popen.pid != first)

    asyncio.run(supervisor.run(watch()))
    why = supervisor.supervised[0].why
    if what == "computes":
        assert (why, caplog.text.count("it computes, and is left to it")) == ("", 1)
    else:
        assert why.startswith(
            f"gave no sign of life for {silence_s:g} s (no answer, no progress: 0.0 s of CPU time"
        )
        assert why.endswith("and was killed")


@pytest.mark.slow
def test_a_process_that_was_suspended_for_less_than_its_limit_goes_on(process_group, tmp_path):
    supervisor, child = supervised_buffer(process_group, tmp_path, silence_s=60.0)
    pid = child.popen.pid

    async def suspend():
        child.popen.send_signal(signal.SIGSTOP)
        await until(lambda: time.monotonic() - supervisor.supervised[0].liveness.answered > 8.0)
        child.popen.send_signal(signal.SIGCONT)
        await until(lambda: time.monotonic() - supervisor.supervised[0].liveness.answered < 3.0)

    asyncio.run(supervisor.run(suspend()))
    assert child.popen.pid == pid
    assert healthy(child)
    assert supervisor.restarts() == {}
