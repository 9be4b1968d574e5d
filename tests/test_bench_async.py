"""What the bench of the schedules computes: recorded batches are read back, how close a run came to its bound."""

import dataclasses
import os
import subprocess
import time

import numpy as np
import pytest

from asyncrl.data.codec import decode_group
from asyncrl.data.table import TrajectoryTable
from asyncrl.types import Group, Status, Task, Trajectory, Turn
from tests.scripts import load_script


@pytest.fixture
def bench(monkeypatch):
    return load_script("bench/bench_async")


@pytest.fixture
def process_times(monkeypatch):
    return load_script("bench/process_times")


@pytest.fixture
def stolen():
    return load_script("bench/stolen")


def repeat(run_s, trainer_s, turn_s, stolen_run=0.0, stolen_trainer=0.0, cpu_s=(0.0, 0.0)):
    """A group has 10 turns; `cpu_s` are processor seconds of the trainer for a group and of the engine for a turn."""
    return {
        "schedules": {
            "partial": {
                "groups_per_hour": 3600 / (2 * run_s),
                "groups_per_hour_after_first": 3600 / run_s,
                "turns_per_group": 10.0,
                "stolen": stolen_run,
                "trainer_alone": {"s": trainer_s, "stolen": stolen_trainer, "cpu_s": cpu_s[0]},
            }
        },
        "engine_alone": [{"s": turn_s * part, "stolen": 0.0, "cpu_s": cpu_s[1]} for part in (0.8, 1.2)],
    }


def test_the_bound_is_the_busier_of_engine_and_trainer(bench):
    found = bench.bound_fractions(
        [repeat(0.2, 0.1, 0.005), repeat(0.2, 0.16, 0.018), repeat(0.2, 0.12, 0.006)]
    )
    assert found["bound_fraction"] == pytest.approx(0.6)
    assert found["bound_fraction_range"] == pytest.approx([0.5, 0.9])
    assert found["bound_fraction_whole"] == pytest.approx(0.3)


def test_where_both_need_more_than_all_cores_the_cores_are_a_bound_too(bench, monkeypatch):
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 2)
    found = bench.bound_fractions([repeat(0.2, 0.08, 0.01, cpu_s=(0.12, 0.02))])
    assert found["bound_fraction_cores"] == pytest.approx(0.16 / 0.2)
    assert found["bound_fraction"] == pytest.approx(0.1 / 0.2)
    found = bench.bound_fractions([repeat(0.2, 0.08, 0.01, cpu_s=(0.08, 0.01))])
    assert found["bound_fraction"] == found["bound_fraction_cores"] == pytest.approx(0.1 / 0.2)


def test_the_turns_of_a_group_are_those_after_the_first_step(bench):
    step = {"turns/mean": 9.0, "batch/sequences": 99, "batch/groups": 9}
    later = [{"turns/mean": t, "batch/sequences": 8 * g, "batch/groups": g} for t, g in ((4.0, 1), (6.0, 3))]
    assert bench.turns_per_group([step, *later]) == pytest.approx((4 * 8 + 6 * 24) / 4)


def test_processor_times_are_by_role_between_two_moments(bench, process_times):
    log = process_times.ProcessTimes()
    log.stop()
    assert log.samples[0][1]["launcher"] > 0
    log.samples = [(0.0, {"a": 1.0}), (2.0, {"a": 2.0, "b": 4.0}), (4.0, {"a": 2.0, "b": 6.0})]
    assert log.used_s(0.0, 4.0) == {"a": 1.0, "b": 6.0}
    assert log.used_s(1.0, 3.0) == {"a": 0.5, "b": 3.0}
    steps = [{"time": time, "batch/groups": 2} for time in (0.0, 2.0, 4.0)]
    assert bench.cpu_ms_per_group(log, steps) == {"a": 250.0, "b": 1500.0}


def test_a_process_that_ended_and_was_not_waited_for_keeps_its_time(process_times):
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        log = process_times.ProcessTimes()
        log.stop()
    assert log.samples[0][1]["other"] >= 0


def test_a_process_has_the_role_that_its_command_names(process_times):
    commands = {
        "rollout": ["python", "-m", "asyncrl", "serve", "rollout", "--folder", "f"],
        "api_server": ["python", "-m", "asyncrl.weights.vllm_api_server", "--model", "m"],
        "engine_core": ["VLLM::EngineCore"],
        "other": ["sleep", "1"],
    }
    assert {role: process_times.role_of(command) for role, command in commands.items()} == {
        r: r for r in commands
    }


def test_the_bound_is_also_given_without_stolen_time(bench):
    found = bench.bound_fractions([repeat(0.2, 0.3, 0.005, stolen_run=0.25, stolen_trainer=0.6)])
    assert found["bound_fraction"] == pytest.approx(1.5)
    assert found["bound_fraction_unstolen"] == pytest.approx(0.3 * 0.4 / (0.2 * 0.75))


def test_stolen_shares_are_of_the_time_that_was_demanded(stolen, tmp_path):
    (tmp_path / "stat").write_text("cpu  10 20 30 1000 40 5 6 7 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    assert stolen.processor_times(tmp_path / "stat") == (10 + 20 + 30 + 5 + 6, 7)
    assert stolen.processor_times(tmp_path / "none") == (0, 0)
    log = stolen.StolenTime()
    log.stop()
    log.samples = [(0.0, 0, 0), (1.0, 100, 0), (2.0, 160, 40), (3.0, 160, 40)]
    assert log.share(0.0, 1.0) == 0.0
    assert log.share(1.0, 2.0) == pytest.approx(0.4)
    assert log.share(0.0, 2.0) == pytest.approx(0.2)
    assert log.share(2.0, 3.0) == 0.0
    assert log.used_s(0.0, 2.0) == pytest.approx(160 / stolen.TICKS_PER_S)
    assert log.used_s(1.0, 1.5) == pytest.approx(30 / stolen.TICKS_PER_S)


def test_stolen_time_is_noted_until_it_is_stopped(stolen):
    log = stolen.StolenTime()
    deadline = time.monotonic() + 10
    while len(log.samples) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    log.stop()
    count = len(log.samples)
    assert count >= 2
    assert 0.0 <= log.share(log.samples[0][0], log.samples[-1][0]) <= 1.0


def test_recorded_batches_are_those_that_were_trained(tmp_path):
    trajectory = Trajectory(
        task_id="a",
        episode_index=1,
        token_ids=np.array([5, 6, 7], np.int32),
        loss_mask=np.array([False, True, True]),
        behavior_logprobs=np.array([0.0, -0.5, -0.25], np.float32),
        versions=np.array([-1, 2, 3], np.int32),
        turns=(Turn(1, 2, 0.5), Turn(2, 3, 0.25)),
        reward=0.75,
        status=Status.FINISHED,
        components={"moves": 2.0},
        success=True,
        info={"rollout": 1},
    )
    other = dataclasses.replace(trajectory, episode_index=0, reward=0.0)
    groups = [
        Group("g1", Task("a", "gridworld"), 2, (other, trajectory)),
        Group("g2", Task("b", "gridworld"), 1, (dataclasses.replace(trajectory, task_id="b"),)),
    ]
    table = TrajectoryTable(tmp_path / "trajectories")
    table.write(2, groups[1:])
    table.write(1, groups)
    batches = load_script("bench/trainer_alone").RecordedBatches(tmp_path)
    taken = [[decode_group(body) for body in batches.take(step, 0.0)] for step in (0, 1)]
    assert [[group.id for group in groups] for groups in taken] == [["g1", "g2"], ["g2"]]
    first = taken[0][0]
    assert (first.task.id, first.version, len(first.trajectories)) == ("a", 2, 2)
    found = first.trajectories[1]
    for name in ("token_ids", "loss_mask", "behavior_logprobs", "versions"):
        assert np.array_equal(getattr(found, name), getattr(trajectory, name))
        assert getattr(found, name).dtype == getattr(trajectory, name).dtype
    for name in ("turns", "reward", "status", "components", "success", "rollout"):
        assert getattr(found, name) == getattr(trajectory, name)
