"""The Grafana dashboard asks for what the services really expose."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx

from asyncrl.extensions.monitor.command import DASHBOARD
from asyncrl.extensions.monitor.service import monitor_app
from tests.app_thread import AppThread
from tests.buffer.serving import ThreadService
from tests.credentials import AUTHORIZED, RUN
from tests.extensions.monitor.dashboard import expressions, missing
from tests.run.folders import add_activity, add_step, make_run
from tests.services.env.test_env_service import end, start

TABLE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
LOGGED = re.findall(r"^\|[^|]+\| `([\w/]+)` \|", TABLE, re.MULTILINE)
"""Names that the page says a step has; `tests/train/test_step_record.py` holds the page against a step."""
OF_RUNS = (
    "asyncrl_run_",
    "asyncrl_step_",
    "asyncrl_engine_",
    "asyncrl_process_",
    "asyncrl_buffer_groups",
    "asyncrl_buffer_slots",
)


def exposed_by(url):
    request = urllib.request.Request(f"{url}/metrics", headers=AUTHORIZED)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def test_the_monitor_answers_what_the_panels_of_runs_ask(tmp_path):
    run = make_run(tmp_path / "runs" / "one")
    add_step(run, 4, **dict.fromkeys(LOGGED, 0.5))
    add_activity(run)
    service = AppThread(monitor_app(tmp_path / "runs", RUN.access("monitor")), tmp_path)
    try:
        with httpx.Client(base_url=service.url, headers=AUTHORIZED, timeout=30) as client:
            text = client.get("/metrics").text
    finally:
        service.close()
    assert [wrong for prefix in OF_RUNS for wrong in missing(prefix, text)] == []
    assert missing("asyncrl_run_", "") != []


def test_a_buffer_and_an_environment_service_answer_what_their_panels_ask(tmp_path):
    process, url = start(tmp_path, max_sessions=4)
    try:
        assert missing("asyncrl_env_", exposed_by(url)) == []
    finally:
        end(process)
    (tmp_path / "buffer").mkdir()
    buffer = ThreadService(tmp_path / "buffer")
    try:
        assert missing("asyncrl_buffer_trained", exposed_by(buffer.url)) == []
    finally:
        buffer.close()


def test_every_expression_is_of_a_service_that_is_asked_here():
    # `tests/services/rollout/test_rollout_service.py` asks a rollout worker.
    tested = (*OF_RUNS, "asyncrl_env_", "asyncrl_buffer_trained", "asyncrl_rollout_")
    names = re.findall(r"asyncrl_\w+", "\n".join(expressions()))
    assert [name for name in names if not name.startswith(tested)] == []


def test_panels_stand_beside_and_below_each_other_and_the_command_writes_them(tmp_path):
    board = json.loads(DASHBOARD.read_text())
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (place["x"] + dx, place["y"] + dy)
        for place in places
        for dx in range(place["w"])
        for dy in range(place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    file = tmp_path / "dashboard.json"
    subprocess.run([sys.executable, "-m", "asyncrl", "monitor", "--grafana", str(file)], check=True)
    assert json.loads(file.read_text()) == board
