"""Real runs whose processes are killed: they end as planned, and every task is trained once."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import msgpack
import pytest

from asyncrl.config import load_config
from asyncrl.train.progress import read_metrics
from tests.test_end_to_end import RECIPE, environment, processes_of, weight_folders

pytestmark = pytest.mark.slow
STEPS = 8
STARTED: list[subprocess.Popen] = []


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reliability")
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(autouse=True)
def spawned():
    """Processes to end when the test has ended, however it did."""
    STARTED.clear()
    yield
    end_started()


def end_started():
    for process in STARTED:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def command(workplace, *words):
    return [sys.executable, "-m", "asyncrl", "train", *words]


def start(workplace, name, *more):
    settings = [
        f"run.folder={workplace / 'runs'}", f"run.name={name}", f"train.num_steps={STEPS}",
        f"env.num_tasks={4 * STEPS}", "train.checkpoint_every=2", "eval.tasks=0", "rollout.lease_s=20", *more,
    ]  # fmt: skip
    # Not a pipe: one that nobody reads would stop the run when it is full.
    with open(workplace / f"{name}.err", "w") as errors:
        process = subprocess.Popen(
            command(workplace, str(workplace / "recipe.toml"), *settings),
            env=environment(workplace), stderr=errors,
        )  # fmt: skip
    STARTED.append(process)
    return process


def wait_for_step(run, step, process):
    deadline = time.monotonic() + 300
    while len(read_metrics(run)) < step:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)


def check_trained_once(run):
    """Every task was trained in the step whose trajectories hold it and in no other, or dropped with a reason."""
    import pyarrow.parquet as pq

    rows = (
        sqlite3.connect(run / "ledger.sqlite").execute("SELECT id, state, step, reason FROM tasks").fetchall()
    )
    assert len(rows) == 4 * STEPS
    assert all(state == "trained" or (state == "dropped" and why) for _, state, _, why in rows)
    seen = set()
    for path in (run / "trajectories").glob("*.parquet"):
        seen |= {(row["task"], row["step"] - 1) for row in pq.read_table(path).to_pylist()}
    assert seen == {(task, step) for task, state, step, _ in rows if state == "trained"}
    summary = json.loads((run / "summary.json").read_text())
    assert [record["step"] for record in read_metrics(run)] == list(range(1, summary["steps"] + 1))
    assert summary["steps"] >= STEPS - 1
    assert summary["staleness"]["max"] <= 1
    assert not processes_of(run)
    assert not weight_folders(run.name)


@pytest.mark.parametrize("role", ["trainer", "engine", "rollout", "env", "buffer"])
def test_a_run_survives_the_death_of_any_role(workplace, role):
    run = workplace / "runs" / f"kill-{role}"
    process = start(workplace, run.name)
    wait_for_step(run, 3, process)
    next(p for p in processes_of(run) if p.cmdline()[4:5] == [role]).kill()
    assert process.wait(400) == 0, (workplace / f"{run.name}.err").read_text()
    check_trained_once(run)
    died = [json.loads(line) for line in (run / "restarts.jsonl").read_text().splitlines()]
    assert [event["name"].split("-")[0] for event in died] == [role]
    assert died[0]["why"] == "was killed by signal 9"


def guest(workplace, run, role, *options):
    """Start a process that joins the run; return it and its address once it serves."""
    buffer = json.loads((run / "endpoints" / "buffer.json").read_text())["url"]
    ready = workplace / f"guest-{role}.json"
    argv = ["serve", role, "--join", buffer, "--ready-file", str(ready), *options]
    process = subprocess.Popen([sys.executable, "-m", "asyncrl", *argv], env=environment(workplace))
    STARTED.append(process)
    deadline = time.monotonic() + 300
    while not ready.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    return process, json.loads(ready.read_text())["url"]


def test_engines_environments_and_workers_join_a_running_job_and_leave_it(workplace):
    run = workplace / "runs" / "elastic"
    process = start(workplace, run.name, "train.num_steps=1000000", "env.num_tasks=0")
    wait_for_step(run, 1, process)
    engine, engine_url = guest(workplace, run, "engine")
    env, env_url = guest(workplace, run, "env")
    worker, worker_url = guest(workplace, run, "rollout", "--name", "guest")

    def ask(url, path):
        with urllib.request.urlopen(url + path, timeout=30) as reply:
            return json.loads(reply.read())

    def served():
        with urllib.request.urlopen(engine_url + "/asyncrl/v1/state", timeout=30) as reply:
            version = msgpack.unpackb(reply.read())["version"]
        return (
            version > 0 and ask(env_url, "/v1/status")["opened"] and ask(worker_url, "/v1/status")["groups"]
        )

    deadline = time.monotonic() + 200
    while not served():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    for one in (worker, env, engine):
        one.terminate()
        assert one.wait(60) == 0
    steps = len(read_metrics(run))
    wait_for_step(run, steps + 3, process)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    rows = sqlite3.connect(run / "ledger.sqlite").execute("SELECT state, worker FROM tasks").fetchall()
    assert ("trained", "guest") in rows
    assert ("leased", "guest") not in rows


def test_a_run_whose_launcher_was_killed_goes_on_where_its_checkpoint_is(workplace):
    run = workplace / "runs" / "resumed"
    process = start(workplace, run.name)
    wait_for_step(run, 5, process)
    process.kill()
    process.wait(30)
    deadline = time.monotonic() + 30
    while processes_of(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(run)
    done = subprocess.run(
        command(workplace, "--resume", str(run), "train.zero_stage=2"),
        env=environment(workplace), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_trained_once(run)
    assert json.loads((run / "config.json").read_text())["train"]["zero_stage"] == 2


@pytest.mark.timeout(1800)
def test_ten_kills_at_random_lose_nothing(workplace):
    script = Path(__file__).parent.parent / "scripts" / "chaos.py"
    report = workplace / "chaos.json"
    done = subprocess.run(
        [
            *(sys.executable, str(script), "--kills", "10", "--seed", "0", "--json", str(report)),
            *("--recipe", str(workplace / "recipe.toml"), "eval.tasks=50", "env.processes=2"),
        ],
        env=environment(workplace), capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["kills"] == 10
    assert all(found["checks"].values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "nowhere"], "--resume nowhere: has no config.json"),
        (["--resume", "{run}", "env.name=calculator"], "env cannot change while a run goes on"),
        (["--resume", "{run}", "train.num_stepz=3"], "train.num_stepz: unknown key"),
        ([], "give a recipe, or --resume"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused_by_name(workplace, words, message):
    run = workplace / "runs" / "refused"
    run.mkdir(parents=True, exist_ok=True)
    config = load_config(workplace / "recipe.toml")
    (run / "config.json").write_text(config.model_dump_json())
    done = subprocess.run(
        command(workplace, *(word.format(run=run) for word in words)),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr


def test_a_second_launcher_is_kept_out_of_a_run(workplace):
    run = workplace / "runs" / "locked"
    process = start(workplace, run.name)
    deadline = time.monotonic() + 120
    while not (run / "config.json").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    second = subprocess.run(
        command(workplace, "--resume", str(run)), capture_output=True, text=True, timeout=120, check=False
    )
    process.send_signal(signal.SIGINT)
    process.wait(120)
    assert second.returncode == 2
    assert "another run is using it" in second.stderr
