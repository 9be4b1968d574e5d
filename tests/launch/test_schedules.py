"""Every schedule for real, on one engine: what it trains, and under which versions that was sampled."""

import pyarrow.parquet as pq
import pytest

from asyncrl.config import parse_config
from asyncrl.extensions.study.attached_run import AttachedRun, SharedEngine
from asyncrl.run.folder import RunFolder

pytestmark = pytest.mark.slow
STEPS, GROUPS, SIZE = 6, 4, 4
BOUNDS = {"synchronous": 0, "periodic": 0, "one_step_off": 1, "asynchronous": 2, "partial": 2}
RUNS = [
    *((name, {}) for name in BOUNDS),
    ("partial", {"over_provision": 3, "token_budget": 100}),
    ("asynchronous", {"recycle": False}),
]


def config_of(model, schedule, buffer):
    free = {"max_staleness": BOUNDS[schedule]} if BOUNDS[schedule] > 1 else {}
    return parse_config(
        {
            "run": {"threads": 1},
            "model": {"path": model},
            "env": {"name": "calculator"},
            "engine": {"max_model_len": 256, "max_num_seqs": 64},
            "rollout": {"group_size": SIZE, "max_tokens_per_turn": 24, "max_turns": 3},
            "buffer": {"groups_per_step": GROUPS, "drop_no_signal": False, **free, **buffer},
            "algo": {"preset": "grpo"},
            "train": {"schedule": schedule, "num_steps": STEPS, "learning_rate": 1e-4},
            "eval": {"tasks": 0},
            "placement": {"sleep": schedule == "synchronous"},
        }
    )


@pytest.fixture(scope="module")
def train(tiny_model, tmp_path_factory):
    """`train(schedule, buffer)` -> summary and the trained episodes of each step, from the same weights every time."""
    folder = tmp_path_factory.mktemp("schedules")
    shared = SharedEngine(config_of(tiny_model, "partial", {}), folder / "engine")

    def run(schedule, buffer):
        shared.reset()
        path = folder / "-".join([schedule, *buffer])
        slept = sleeps(shared)
        with RunFolder(path) as run_folder:
            summary = AttachedRun(config_of(tiny_model, schedule, buffer), run_folder, shared).run()
        # While the trainer loads its model, in each step, and for the last checkpoint.
        assert sleeps(shared) - slept == (STEPS + 2 if schedule == "synchronous" else 0)
        files = sorted((path / "trajectories").glob("step-*.parquet"))
        return summary, [pq.read_table(file).to_pylist() for file in files]

    try:
        yield run
    finally:
        shared.stop()


def sleeps(shared):
    """Count how often the engine has been put to sleep, by what vLLM says on a CPU, when it wakes too."""
    said = shared.child.log.read_text().count("sleep mode is not supported on CPU")
    assert said % 2 == 0
    return said // 2


def versions_of(row, start=0, end=None):
    pairs = zip(row["versions"][start:end], row["loss_mask"][start:end], strict=True)
    return {version for version, sampled in pairs if sampled}


@pytest.mark.parametrize(("schedule", "buffer"), RUNS)
def test_it_trains_fresh_enough_groups_once_and_mixes_versions_only_where_it_says_so(train, schedule, buffer):
    summary, steps = train(schedule, buffer)
    assert summary["steps"] == len(steps) == STEPS
    for step, rows in enumerate(steps):
        lags = {step - version for row in rows for version in versions_of(row)}
        assert lags <= set(range(BOUNDS[schedule] + 1))
        if schedule == "one_step_off" and step:
            assert lags == {1}
        groups = {row["group"] for row in rows}
        if "token_budget" in buffer:
            assert 0 < len(groups) <= GROUPS
        else:
            assert (len(groups), len(rows)) == (GROUPS, GROUPS * SIZE)
        for row in rows:
            if schedule in ("synchronous", "periodic", "one_step_off"):
                assert len(versions_of(row)) == 1
            if schedule == "asynchronous":
                turns = zip(row["turn_start"], row["turn_end"], strict=True)
                assert all(len(versions_of(row, *turn)) == 1 for turn in turns)
    tasks = [{row["task"] for row in rows} for rows in steps]
    assert sum(map(len, tasks)) == len(set().union(*tasks))
    if "token_budget" in buffer:
        assert min(map(len, tasks)) < GROUPS
