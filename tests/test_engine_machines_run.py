"""A run whose engine is over two machines out of namespaces; the part without the server is killed, and it goes on."""

import json
import threading
import time
from pathlib import Path

import psutil
import pytest

from asyncrl.config import load_config
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics
from scripts.testing.namespaces import Machines, problem
from scripts.testing.spread_run import SpreadRun
from tests.runs import CACHE, check_trained_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 6
SETTINGS = (
    "engine.nodes=2", "engine.pipeline_parallel=2", "engine.weight_transfer=http", f"train.num_steps={STEPS}",
    f"env.num_tasks={4 * STEPS}", "train.checkpoint_every=2", "eval.tasks=0", "run.name=two",
)  # fmt: skip
TOLERANCE = 1e-4


def kill_workers_of(machines, number, run):
    """When two steps are trained, kill the process of an engine on a machine; return what it was."""
    while len(read_metrics(run)) < 2:
        time.sleep(0.05)
    for pid in machines.pids(number):
        command = " ".join(psutil.Process(pid).cmdline())
        if "serve engine" in command:
            psutil.Process(pid).kill()
            return command
    return "none"


def test_an_engine_over_two_machines_ends_and_starts_again_with_any_of_its_processes(workplace, monkeypatch):
    if refused := problem():
        pytest.skip(refused)
    monkeypatch.setenv("ASYNCRL_CACHE", CACHE)
    run = workplace / "runs" / "two"
    config = load_config(str(workplace / "recipe.toml"), [*SETTINGS, f"run.folder={workplace / 'runs'}"])
    killed = []
    with RunFolder(run) as folder, Machines(2) as machines:
        training = SpreadRun(config, folder, machines=machines, node_roles={2: "engine"})
        thread = threading.Thread(
            target=lambda: killed.append(kill_workers_of(machines, 2, run)), daemon=True
        )
        thread.start()
        summary = training.run()
        placement = str(training.placement)
    assert "node1: engine-0" in placement and "node2: engine-0" in placement
    assert "--node-rank 1" in killed[0]
    (restart,) = map(json.loads, (run / "restarts.jsonl").read_text().splitlines())
    assert (restart["name"], restart["why"]) == ("engine-0", "was killed by signal 9 on node2")
    assert summary["restarts"] == {"engine-0": 1}
    check_trained_once(run, STEPS)
    steps = read_metrics(run)
    assert [one["logprob_check/tokens"] for one in steps[2:]] == [one["tokens/trained"] for one in steps[2:]]
    assert max(one["logprob_check/worst_token"] for one in steps) < TOLERANCE
    assert not list(Path("/dev/shm").glob("asyncrl-*-two"))
