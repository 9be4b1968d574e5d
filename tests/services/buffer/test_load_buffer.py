"""The load script of the buffer on a small scale: a healthy service passes, and each kind of loss is found."""

import copy
import json
import subprocess
import sys

import pytest

from tests.scripts import SCRIPTS, load_script

SCRIPT = SCRIPTS / "bench" / "load_buffer.py"
SEEN = {
    "planned": 4,
    "trained": {"a": [0], "b": [1]},
    "lags": {0: 3, 3: 1},
    "status": {"in_flight": 0},
    "rss_mib": [50.0] + 40 * [100.0],
    "worker_exit_codes": [0, 0],
}
ROWS = [
    ("a", "trained", 0, ""),
    ("b", "trained", 1, ""),
    ("c", "dropped", None, "no_signal"),
    ("d", "failed", None, "gone"),
]


@pytest.fixture(scope="module")
def judge():
    return load_script("bench/load_buffer").judge


@pytest.mark.slow
def test_a_small_load_loses_nothing_though_its_workers_are_killed(tmp_path):
    out = tmp_path / "report.json"
    size = ["--workers", "20", "--minutes", "0.15", "--groups-per-step", "8", "--episode-s", "0.3"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *size, "--kill-every", "3", "--json", out],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert report["problems"] == []
    assert set(report["tasks"]) == {"trained", "dropped", "failed"}
    assert report["tasks"]["trained"] >= 8 * (report["steps"] - 1)
    assert report["worker_processes_killed"] >= 2
    assert report["max_staleness_seen"] <= 3
    assert (
        0 < report["in_service_ms"]["lease at once"]["p50"] <= report["in_service_ms"]["lease at once"]["p99"]
    )
    assert report["loop_late_ms"]["all"]["p99"] > 0


def test_a_load_of_which_everything_is_accounted_for_has_no_problems(judge):
    assert judge(SEEN, ROWS, 3) == []


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("planned", 5, "5 tasks were planned, the ledger holds 4"),
        ("trained", {"a": [0], "b": [1, 2]}, "1 tasks were trained more than once, such as b"),
        ("trained", {"a": [0], "b": [2]}, "1 tasks were trained otherwise than the ledger says, such as b"),
        ("trained", {"a": [0]}, "1 tasks were trained otherwise than the ledger says, such as b"),
        ("lags", {4: 1}, "a token was 4 versions old, the bound is 3"),
        ("status", {"in_flight": 2}, "2 leases are left"),
        ("rss_mib", [100.0] * 30 + [130.0] * 4, "memory grew from 100.0 to 130.0 MiB"),
        ("worker_exit_codes", [0, 1], "worker processes ended with [0, 1]"),
    ],
)
def test_what_was_seen_wrong_is_a_problem(judge, name, value, found):
    problems = judge(copy.deepcopy(SEEN) | {name: value}, ROWS, 3)
    assert found in problems


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (("c", "leased", None, ""), "1 tasks are still leased"),
        (("c", "dropped", None, ""), "1 tasks were lost without a reason, such as c"),
    ],
)
def test_what_the_ledger_holds_wrong_is_a_problem(judge, row, found):
    assert judge(SEEN, [*ROWS[:2], row, ROWS[3]], 3) == [found]
