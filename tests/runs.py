"""A small run of the main job in processes of its own, and what it leaves, for tests that disturb it."""

import json
import os
import sqlite3
import sys
from pathlib import Path

import psutil

from asyncrl.process_start import Process, run_process, start_process
from asyncrl.run.metrics import read_metrics
from tests.shared import shared_folder
from tests.waiting import running, wait_for_url, wait_until

RECIPE = """
[run]
threads = 1
[model]
path = "sft"
[env]
name = "gridworld"
[engine]
max_model_len = 128
max_num_seqs = 64
[rollout]
group_size = 4
max_tokens_per_turn = 8
[buffer]
groups_per_step = 4
drop_no_signal = false
[train]
num_steps = 3
learning_rate = 1e-3
micro_batch_tokens = 4096
[eval]
tasks = 20
[sft]
hidden_size = 64
num_layers = 2
episodes = 300
steps = 120
"""
STEPS = 8
UNHURRIED = "rollout.batch_delay_s=0.2"
"""For a run that goes on while something else is waited for: its steps leave the CPU to that."""
STARTED: list[Process] = []
CACHE = str(shared_folder() / "cache")
"""Base models of the whole session, for all its processes: each is trained once, whichever test needs it first."""


def environment():
    return {**os.environ, "ASYNCRL_CACHE": CACHE}


def processes_of(run):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(run) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def weight_folders(name):
    return list(Path("/dev/shm").glob(f"asyncrl-*-{name}"))


def end_started():
    while STARTED:
        process = STARTED.pop()
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
        process = start_process(
            command(workplace, str(workplace / "recipe.toml"), *settings), environment(), errors.fileno()
        )
    STARTED.append(process)
    return process


def wait_for_step(run, step, process):
    wait_until(lambda: len(read_metrics(run)) >= step, running(process))


def kill_launcher(run, process):
    """Kill a run's launcher and see all its processes end with it."""
    process.kill()
    process.wait(30)
    wait_until(lambda: not processes_of(run), limit_s=60)


def resume(workplace, run, *changes):
    """Go on with a run until its end."""
    done = to_its_end(command(workplace, "--resume", str(run), *changes))
    assert done.returncode == 0, done.stderr


def to_its_end(command, timeout_s=400):
    """Run a command of a run, forked where there is a server; return its exit code, output and errors."""
    return run_process(command, environment(), timeout_s)


def check_trained_once(run, steps=STEPS):
    """Every task was trained in the step whose trajectories hold it and in no other, or dropped with a reason."""
    import pyarrow.parquet as pq

    rows = (
        sqlite3.connect(run / "ledger.sqlite").execute("SELECT id, state, step, reason FROM tasks").fetchall()
    )
    assert len(rows) == 4 * steps
    assert all(state == "trained" or (state == "dropped" and why) for _, state, _, why in rows)
    seen = set()
    for path in (run / "trajectories").glob("*.parquet"):
        seen |= {(row["task"], row["step"] - 1) for row in pq.read_table(path).to_pylist()}
    assert seen == {(task, step) for task, state, step, _ in rows if state == "trained"}
    summary = json.loads((run / "summary.json").read_text())
    assert [record["step"] for record in read_metrics(run)] == list(range(1, summary["steps"] + 1))
    assert summary["steps"] >= steps - 1
    assert summary["staleness"]["max"] <= 1
    assert not processes_of(run)
    assert not weight_folders(run.name)


def guest(workplace, run, role, *options):
    """Start a process that joins the run; return it and its address once it serves."""
    buffer = json.loads((run / "endpoints" / "buffer.json").read_text())["url"]
    ready = workplace / f"guest-{role}.json"
    argv = ["serve", role, "--join", buffer, "--ready-file", str(ready), *options]
    # Forked where the processes of runs are.
    process = start_process([sys.executable, "-m", "asyncrl", *argv], environment())
    STARTED.append(process)
    return process, wait_for_url(ready, running(process))
