"""The load script on a small scale: a healthy service passes, and each kind of leak is found."""

import copy
import json
import subprocess
import sys
from argparse import Namespace

import pytest

from tests.scripts import SCRIPTS, load_script

SCRIPT = SCRIPTS / "bench" / "load_env.py"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    out = tmp_path_factory.mktemp("load") / "report.json"
    size = ["--minutes", "0.2", "--grid", "20", "--code", "4", "--think-s", "0.1"]
    done = subprocess.run([sys.executable, SCRIPT, *size, "--json", out], capture_output=True, timeout=300)
    return done.returncode, json.loads(out.read_text())


@pytest.fixture(scope="module")
def judge():
    return load_script("bench/load_env").judge


@pytest.mark.slow
def test_a_small_load_leaves_nothing(outcome):
    code, report = outcome
    assert (code, report["verdict"], report["problems"]) == (0, "clean", [])
    assert report["played"]["grid"]["steps"] > 20
    assert report["played"]["code"]["steps"] > 4
    assert report["peak"]["sessions_at_least"] >= 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "name", "more", "found"),
    [
        ("idle_after", "processes", 1, "processes"),
        ("idle_after", "user_ids", 1, "user_ids"),
        ("idle_after", "temporary_files", 1, "temporary_files"),
        ("idle_after", "open_files", 20, "open_files"),
        ("idle_after", "threads", 200, "threads"),
        ("idle_after", "rss_mib", 80, "rss_mib"),
        ("idle_after", "held", 1, "held"),
        ("idle_after", "lost", 1, "lost"),
        ("idle_after", "workers_replaced", 1, "workers_replaced"),
        ("peak", "sessions_at_least", -100, "sessions were open"),
    ],
)
def test_a_leak_of_any_kind_is_a_problem(outcome, judge, part, name, more, found):
    report = copy.deepcopy(outcome[1])
    options = Namespace(grid=20, code=4, processes=2)
    assert judge(report, options) == []
    report[part][name] += more
    (problem,) = judge(report, options)
    assert found in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "value"),
    [("left_running", ["7 python"]), ("files_left", ["tmp/x"]), ("wrong", {"grid: reward 0": 3})],
)
def test_what_is_left_after_the_stop_or_went_wrong_is_a_problem(outcome, judge, part, value):
    problems = judge(outcome[1] | {part: value}, Namespace(grid=20, code=4, processes=2))
    assert len(problems) == 1
