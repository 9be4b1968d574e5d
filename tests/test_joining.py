"""A real run that further processes join and leave."""

import json
import signal
import sqlite3
import urllib.request

import msgpack
import pytest

from asyncrl.run.metrics import read_metrics
from tests.credentials import AUTHORIZED
from tests.runs import UNHURRIED, guest, start, wait_for_step
from tests.waiting import running, wait_until

pytestmark = pytest.mark.slow


def test_engines_environments_and_workers_join_a_running_job_and_leave_it(workplace):
    run = workplace / "runs" / "elastic"
    # Weights come to the engine that joins from the trainer and from the run's own engine.
    process = start(
        workplace, run.name, "train.num_steps=1000000", "env.num_tasks=0", "engine.weight_transfer=http",
        UNHURRIED,
    )  # fmt: skip
    wait_for_step(run, 1, process)
    engine, engine_url = guest(workplace, run, "engine")
    env, env_url = guest(workplace, run, "env")
    worker, worker_url = guest(workplace, run, "rollout", "--name", "guest")

    def ask(url, path):
        request = urllib.request.Request(url + path, headers=AUTHORIZED)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.loads(reply.read())

    def served():
        request = urllib.request.Request(engine_url + "/asyncrl/v1/state", headers=AUTHORIZED)
        with urllib.request.urlopen(request, timeout=30) as reply:
            version = msgpack.unpackb(reply.read())["version"]
        return (
            version > 0 and ask(env_url, "/v1/status")["opened"] and ask(worker_url, "/v1/status")["groups"]
        )

    wait_until(served, running(process))
    for one in (worker, env, engine):
        one.terminate()
        assert one.wait(60) == 0
    steps = len(read_metrics(run))
    wait_for_step(run, steps + 3, process)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    rows = sqlite3.connect(run / "ledger.sqlite").execute("SELECT state, worker FROM tasks").fetchall()
    guests = {(state, worker) for state, worker in rows if (worker or "").startswith("guest-")}
    assert "trained" in {state for state, _ in guests}
    assert "leased" not in {state for state, _ in guests}
