"""A real run that further processes join and leave."""

import json
import signal
import sqlite3
import urllib.request

import msgpack
import psutil
import pytest

from asyncrl.run.json_lines import JsonLines, last_record
from asyncrl.run.metrics import read_metrics
from tests.credentials import AUTHORIZED
from tests.runs import UNHURRIED, guest, start, wait_for_step
from tests.waiting import running, wait_until

pytestmark = pytest.mark.slow


def changes(run, **fields):
    """Return the changes of the number of processes that a run has noted with these values."""
    noted = JsonLines(run / "scaling.jsonl").refresh()
    return [one for one in noted if all(value in str(one.get(name)) for name, value in fields.items())]


def test_engines_environments_and_workers_join_a_running_job_and_leave_it(workplace):
    run = workplace / "runs" / "elastic"
    # Weights come to the engine that joins from the trainer and from the run's own engine.
    process = start(
        workplace, run.name, "train.num_steps=1000000", "env.num_tasks=0", "engine.weight_transfer=http",
        # One worker plays one of the eight groups that may be in flight: the trainer waits for it.
        "rollout.groups_in_flight=1", "scale.rollout=[1, 2]", "scale.cooldown_s=1", "run.silence_timeout_s=600",
        "env.services=1",
        UNHURRIED,
    )  # fmt: skip
    wait_for_step(run, 1, process)
    wait_until(lambda: changes(run, what="rollout-1 takes part"), running(process))
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
    # A trainer that stands still lets the buffer fill up, and the workers idle.
    trainer = psutil.Process(last_record(run / "activity.jsonl")["pids"]["trainer"])
    trainer.suspend()
    wait_until(lambda: changes(run, name="rollout-1"), running(process))
    trainer.resume()
    (left,) = changes(run, name="rollout-1")
    assert (left["left"], left["unfinished"], left["leases_lost"], left["count"]) == ("drained", 0, 0, 1)
    steps = len(read_metrics(run))
    wait_for_step(run, steps + 3, process)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    ledger = sqlite3.connect(run / "ledger.sqlite")
    rows = ledger.execute("SELECT state, worker FROM tasks").fetchall()
    assert not ledger.execute("SELECT * FROM tasks WHERE reason LIKE '%rollout-1 %'").fetchall()
    assert ("trained", "rollout-1") in rows
    assert not (run / "restarts.jsonl").exists()
    guests = {(state, worker) for state, worker in rows if (worker or "").startswith("guest-")}
    assert "trained" in {state for state, _ in guests}
    assert "leased" not in {state for state, _ in guests}
