"""What a run's processes do is recorded while it trains."""

import asyncio
import dataclasses
import json
import subprocess
import sys

import psutil
import pytest
from fastapi import Response

from asyncrl.data.codec import pack
from asyncrl.launch.processes.process_group import ManagedProcess
from asyncrl.launch.reports import activity
from asyncrl.launch.reports.activity import ActivityLog
from asyncrl.services.http.app import create_app
from tests.app_thread import AppThread, free_port
from tests.credentials import RUN
from tests.waiting import wait_until

STATS = dict.fromkeys(activity._BUFFER, 0) | {"ready": 3, "failed_by_class": {}}


@pytest.fixture
def engine():
    """The state route of an engine."""
    app = create_app("engine", RUN.access("engine"))

    @app.get("/asyncrl/v1/state")
    def state() -> Response:
        found = {"version": 4, "paused": False, "running": 2, "waiting": 1, "kv_usage": 0.5, "kv_tokens": 99}
        return Response(pack(found), media_type="application/msgpack")

    return app


@pytest.fixture
def environments():
    """The status route of an environment service."""
    app = create_app("env", RUN.access("env"))

    @app.get("/v1/status")
    def status() -> dict:
        return {"sessions": 3, "stepping": 1, "steps": 40, "failures": {}}

    return app


@pytest.fixture
def busy(tmp_path):
    """A process that computes, in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    yield ManagedProcess("engine-0", child, tmp_path / "log")
    child.kill()
    child.wait()


def lines(folder):
    return [json.loads(line) for line in (folder / activity.FILE).read_text().splitlines()]


@pytest.mark.slow
def test_a_line_tells_what_engines_environments_buffer_and_processes_do(
    tmp_path, engine, environments, busy, monkeypatch
):
    monkeypatch.setattr(activity, "EVERY_S", 0.0)
    (tmp_path / "env").mkdir()
    server, second_server = AppThread(engine, tmp_path), AppThread(environments, tmp_path / "env")
    busy.url = server.url
    service = dataclasses.replace(busy, name="env", url=second_server.url)
    log = ActivityLog(tmp_path, [busy], [busy], [service], RUN)
    try:
        asyncio.run(log.record(STATS))
        # The kernel counts processor time in hundredths of a second, and a busy machine gives it to others first.
        wait_until(lambda: psutil.Process(busy.popen.pid).cpu_times().user > 0.5)
        asyncio.run(log.record(STATS))
    finally:
        server.close()
        second_server.close()
    first, second = lines(tmp_path)
    assert first["engines"] == {
        "engine-0": {"running": 2, "waiting": 1, "kv_usage": 0.5, "paused": False, "version": 4}
    }
    assert first["environments"] == {"env": {"sessions": 3, "stepping": 1, "steps": 40}}
    assert first["buffer"]["ready"] == 3
    assert "failed_by_class" not in first["buffer"]
    assert second["processes"]["engine-0"] > 0
    assert second["pids"] == {"engine-0": busy.popen.pid}
    assert second["memory_bytes"]["engine-0"] > 2**20
    assert 0 <= second["memory"] <= 1


def test_an_engine_that_does_not_answer_is_left_out(tmp_path, busy):
    busy.url = f"http://127.0.0.1:{free_port()}"
    asyncio.run(ActivityLog(tmp_path, [busy], [busy], [busy], RUN).record(STATS))
    assert [(line["engines"], line["environments"]) for line in lines(tmp_path)] == [({}, {})]


def test_lines_come_no_more_often_than_they_are_due(tmp_path):
    log = ActivityLog(tmp_path, [], [], [], RUN)
    for _ in range(3):
        asyncio.run(log.record(STATS))
    assert len(lines(tmp_path)) == 1


def test_a_disk_that_takes_no_line_ends_the_log_and_not_the_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(activity, "EVERY_S", 0.0)
    folder = tmp_path / "gone"
    log = ActivityLog(folder, [], [], [], RUN)
    for _ in range(2):
        asyncio.run(log.record(STATS))
    assert [record.message for record in caplog.records] == [
        f"{folder / activity.FILE}: No such file or directory; the run's activity is no longer recorded"
    ]
