"""A run whose rewards come from a reward model in a folder, served by a process of the run that is killed meanwhile."""

import json
import os
import signal

import psutil
import pyarrow.parquet as pq
import pytest

from asyncrl.run.metrics import read_metrics
from tests.extensions.judge.reward_models import make
from tests.runs import STEPS, check_trained_once, processes_of, start, wait_for_step

pytestmark = pytest.mark.slow


def reward_model_of(run):
    found = [
        one
        for one in processes_of(run)
        if "reward_model" in " ".join(one.cmdline()) and one.status() != psutil.STATUS_ZOMBIE
    ]
    return found[0]


def test_a_run_learns_from_a_reward_model_and_goes_on_when_that_is_killed(workplace):
    model = make(workplace / "reward-model", labels=("right", "brief"), trained=True)
    run = workplace / "runs" / "judged"
    process = start(
        workplace,
        run.name,
        'judge.kind="folder"',
        f'judge.model="{model}"',
        'judge.components={good={output="right"}, short={output="brief", weight=0.5}}',
    )
    wait_for_step(run, 2, process)
    os.kill(reward_model_of(run).pid, signal.SIGKILL)
    assert process.wait(400) == 0, (workplace / f"{run.name}.err").read_text()
    check_trained_once(run)
    restarts = [json.loads(line)["name"] for line in (run / "restarts.jsonl").read_text().splitlines()]
    assert restarts == ["reward-model"]
    rows = [
        row
        for file in sorted((run / "trajectories").glob("*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    judged = [{one["name"]: one["value"] for one in row["components"]} for row in rows]
    assert len(rows) == 4 * 4 * STEPS
    for row, found in zip(rows, judged, strict=True):
        assert row["reward"] == pytest.approx(found["judge_good"] + 0.5 * found["judge_short"], abs=1e-4)
    assert len({found["judge_good"] for found in judged}) > 1
    assert {record["component/judge_cut"] for record in read_metrics(run)} == {0.0}
