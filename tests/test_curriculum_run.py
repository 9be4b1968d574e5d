"""A whole run under a curriculum, killed in the middle, proposes the tasks that it would have proposed. What it solved
completes groups of another run."""

import sqlite3

import pyarrow.parquet as pq
import pytest

from asyncrl.run.metrics import read_metrics
from tests.runs import RECIPE, end_started, kill_launcher, resume, start, wait_for_step

pytestmark = pytest.mark.slow
STEPS = 4
CURRICULUM = """
[curriculum]
name = "vade"
pool = 24
"""
SETTINGS = (
    "buffer.max_staleness=0",
    f"train.num_steps={STEPS}",
    "env.num_tasks=0",
)


@pytest.fixture(autouse=True)
def spawned():
    """Processes end when the test has ended, however it did."""
    yield
    end_started()


def proposals(run):
    """Return the proposals up to the last that was trained, each with its step, and the curriculum's last state.

    Workers may ask for more tasks before the run ends.
    """
    with sqlite3.connect(run / "ledger.sqlite") as db:
        rows = db.execute(
            "SELECT id, predicted, rollouts, iif(state = 'trained', step, NULL) "
            "FROM proposals JOIN tasks USING (seq) ORDER BY seq"
        ).fetchall()
        last = max(number for number, row in enumerate(rows) if row[-1] is not None)
        return rows[: last + 1], db.execute("SELECT version, state FROM curriculum").fetchone()


def test_a_killed_and_resumed_run_proposes_the_same_tasks(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE + CURRICULUM)
    whole = start(tmp_path, "whole", *SETTINGS)
    assert whole.wait(300) == 0, (tmp_path / "whole.err").read_text()
    killed = tmp_path / "runs" / "killed"
    process = start(tmp_path, killed.name, *SETTINGS)
    wait_for_step(killed, 3, process)
    kill_launcher(killed, process)
    resume(tmp_path, killed)
    expected, state = proposals(tmp_path / "runs" / "whole")
    assert proposals(killed) == (expected, state)
    assert state[0] == STEPS
    assert {step for *_, step in expected} >= set(range(STEPS))
    last = read_metrics(killed)[-1]
    assert last["buffer/curriculum_proposals"] >= 4 * STEPS
    assert 0 <= last["buffer/curriculum_brier"] <= 1
    _complete_from(tmp_path, tmp_path / "runs" / "whole")


def _complete_from(tmp_path, solved):
    """Another run, whose episodes are too short to solve much, trains groups that successes of the first complete."""
    run = tmp_path / "runs" / "completed"
    settings = ("train.complete_groups=true", f"train.complete_from={solved}", "rollout.max_turns=1")
    process = start(
        tmp_path, run.name, *SETTINGS, *settings, "buffer.drop_no_signal=true", "train.num_steps=2"
    )
    assert process.wait(300) == 0, (tmp_path / "completed.err").read_text()
    records = read_metrics(run)
    assert len(records) == 2
    for record in records:
        (file,) = (run / "trajectories").glob(f"step-{record['step']:06d}.parquet")
        rewards = {}
        for row in pq.read_table(file, columns=["group", "reward"]).to_pylist():
            rewards.setdefault(row["group"], set()).add(row["reward"])
        assert record["replay/recorded_successes"] == sum(found == {0.0} for found in rewards.values())
        assert all(len(found) > 1 or found == {0.0} for found in rewards.values())
    assert sum(record["replay/recorded_successes"] for record in records) > 0
    assert (run / "recorded_successes.msgpack").is_file()
