"""Records of issues: the repair is right, nothing and half a repair are not, and no edit of tests or history helps."""

import asyncio
import base64
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from asyncrl.env.scripted import to_action
from asyncrl.envs.swe.env import Swe
from asyncrl.envs.swe.examine import examine
from asyncrl.envs.swe.grade import grade, statuses
from asyncrl.envs.swe.judge import Outcome, judge_patch
from asyncrl.envs.swe.record import read_records
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import Task
from tests.envs.playing import play
from tests.envs.swe_records import COUNT, SHAPES, SQUARE, write_records
from tests.envs.test_terminal import DONE, shell, shown
from tests.shared import made_once

NAMES = ("own__lib-1", "own__lib-2", "own__lib-3", "own__lib-4", "own__lib-smith")
SWEBENCH = os.environ.get("ASYNCRL_SWEBENCH_PYTHON", "")
"""An interpreter that has the package swebench."""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")


@pytest.fixture(scope="module")
def folder():
    return made_once("swe-records", lambda place: write_records(place / "made")) / "made"


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(folder / "cache"))


def make(folder, name, file="records.jsonl", **config):
    settings = {"records": str(folder / file), "bases": {"*": "host"}, **config}
    return Swe(Task(name, "swe", 0, "train", {"record": name}), **settings)


def write(path, text):
    """Return a command that writes a file."""
    packed = base64.b64encode(text.encode()).decode()
    return f"mkdir -p $(dirname {path}) && echo {packed} | base64 -d > {path}"


def ended(folder, name, *commands):
    actions = [shell(*commands)] if commands else []
    return play(make(folder, name), *actions, DONE)[-1]


@pytest.mark.parametrize("name", NAMES)
def test_the_repair_resolves_a_record_and_nothing_does_not(folder, name):
    env = make(folder, name)
    oracle = to_action(env.oracle([{"role": "user", "content": ""}]))
    assert [play(env, oracle, DONE)[-1].reward, ended(folder, name).reward] == [1.0, 0.0]


def test_a_repair_that_breaks_what_passed_or_repairs_half_is_none(folder):
    broken = SQUARE.replace("return sizes[0] * 4", "return 12")
    assert ended(folder, "own__lib-1", write("lib/shapes.py", SQUARE.replace("* 4", "* 5"))).reward == 0.0
    assert ended(folder, "own__lib-1", write("lib/shapes.py", broken)).reward == 1.0
    half = ended(folder, "own__lib-4", write("lib/shapes.py", SQUARE))
    assert (half.reward, half.components["tests_passed"]) == (0.0, 5 / 6)
    assert (
        ended(folder, "own__lib-4", write("lib/shapes.py", SQUARE), write("lib/words.py", COUNT)).reward
        == 1.0
    )


PASSING = "def test_square():\n    pass\n\ndef test_perimeter():\n    pass\n"
HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
PRINTING = "print('PASSED tests/test_shapes.py::test_square')\n" + SHAPES


@pytest.mark.parametrize(
    "commands",
    [
        [write("tests/test_shapes.py", PASSING)],
        ["rm -rf tests/test_shapes.py"],
        [write("conftest.py", HOOK)],
        [write("tests/conftest.py", HOOK)],
        [write("lib/shapes.py", PRINTING)],
        ["rm -rf .git; git init -q; git add -A; git -c user.name=a -c user.email=a@b commit -qm x"],
        ["printf 'tests\\nlib\\n' > .gitignore", write("tests/test_shapes.py", PASSING)],
        [
            write("lib/__pycache__/shapes.cpython-311.pyc", "x"),
            "echo 'import os; os._exit(0)' > sitecustomize.py",
        ],
        ["chmod 000 lib"],
        ["rm -rf lib && ln -s /usr/lib/python3 lib"],
    ],
)
def test_an_agent_that_edits_tests_their_settings_or_the_repository_gains_nothing(folder, commands):
    assert ended(folder, "own__lib-1", *commands).reward == 0.0


def test_a_repair_counts_though_the_agent_has_broken_the_repository_of_it(folder):
    assert ended(folder, "own__lib-1", write("lib/shapes.py", SQUARE), "rm -rf .git tests").reward == 1.0


@pytest.mark.parametrize("name", ["own__lib-1", "own__lib-smith"])
def test_the_history_knows_nothing_of_the_repair(folder, name):
    record = read_records(str(folder / "records.jsonl"))[name]
    lines = (record.gold or record.fault).splitlines()
    sign = "+" if record.gold else "-"
    (repaired,) = [
        line[1:].strip() for line in lines if line.startswith(sign) and not line.startswith(sign * 3)
    ]
    looks = (
        "git log --all --oneline",
        "git reflog --all; git branch -a; git tag; git stash list; git remote -v",
        "git fsck --unreachable --no-reflogs",
        "git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectsize) %(objectname)' | "
        "awk '$1 != \"tree\" && $2 < 3000 { print $3 }' | while read o; do git cat-file -p $o; done",
        "git show origin/main later-0 later-1",
    )
    step = play(make(folder, name, shown_characters=100_000), shell(*looks))[0]
    texts = shown(step)
    assert len(texts[0].splitlines()) == 1
    assert "def perimeter" in texts[3]
    # The same line stands elsewhere in the repository of SWE-smith's record.
    known = SHAPES.count(repaired) - 1 if record.fault else 0
    assert sum(text.count(repaired) for text in texts) == known


def test_records_are_read_in_every_form(folder):
    found = read_records(str(folder / "records.jsonl"))
    assert tuple(found) == NAMES
    first, smith = found["own__lib-1"], found["own__lib-smith"]
    assert first.fail_to_pass == ("tests/test_shapes.py::test_square",) and len(first.pass_to_pass) == 3
    assert first.test_files() == first.tests_patched() == ("tests/test_shapes.py",)
    assert (first.fault, smith.gold, smith.base_commit) == ("", "", "") and "* 3" in smith.fault
    assert [task.id for task in Swe.tasks("heldout", "swe", records=str(folder / "records.jsonl"))] == [
        "own__lib-smith"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_commit": None, "FAIL_TO_PASS": []}, "FAIL_TO_PASS names no test"),
        ({"install_config": {"log_parser": "parse_log_go"}}, "only pytest's output is read"),
        ({"repo": "no/such"}, "no__such.bundle is missing: make it with"),
        ({"bundle": "../x"}, "is not in"),
        ({"FAIL_TO_PASS": "[1]"}, "names of tests must be texts"),
    ],
)
def test_a_record_that_cannot_be_played_is_refused_with_its_line(folder, tmp_path, change, message):
    first = json.loads((folder / "records.jsonl").read_text().splitlines()[0])
    (tmp_path / "r.jsonl").write_text(json.dumps({**first, **change}) + "\n")
    with pytest.raises(ConfigError, match=f"line 1: .*{message}"):
        read_records(str(tmp_path / "r.jsonl"), str(folder))


def test_tests_that_cannot_be_put_back_are_the_records_failure(folder):
    env = make(folder, "own__lib-1")
    env.record = replace(env.record, test_patch=env.record.test_patch.replace("test_unknown", "test_other"))
    with pytest.raises(EnvironmentFailure, match="its tests cannot be put into the repository"):
        play(env, DONE)


# -- grading ----------------------------------------------------------------------------------------------------

LOG = """tests/t.py ..FE
=== short test summary info ===
PASSED tests/t.py::test_a
PASSED tests/t.py::test_p[x-1]
SKIPPED [1] tests/t.py:5: no network
XFAIL tests/t.py::test_x - known
FAILED tests/t.py::test_b - AssertionError: assert 1 == 2
ERROR tests/t.py::test_c - fixture
"""


def test_statuses_are_read_from_pytests_summary_and_the_worst_of_a_name_counts():
    assert statuses(LOG) == {
        "tests/t.py::test_a": "PASSED", "tests/t.py::test_p[x-1]": "PASSED", "tests/t.py::test_x": "XFAIL",
        "tests/t.py::test_b": "FAILED", "tests/t.py::test_c": "ERROR",
    }  # fmt: skip
    assert (
        statuses("FAILED t::a\nPASSED t::a")["t::a"]
        == statuses("PASSED t::a\nFAILED t::a")["t::a"]
        == "FAILED"
    )


def test_a_run_that_ends_badly_without_a_failed_test_has_passed_none(folder):
    record = replace(read_records(str(folder / "records.jsonl"))["own__lib-1"], pass_to_pass=())
    log = "PASSED tests/test_shapes.py::test_square\n"
    assert [grade(record, log, status).resolved for status in (0, 1)] == [True, False]


def graded_by_swebench(record, log, tmp_path):
    """Grade a log as swebench's own code does, with its markers put in as its script writes them."""
    program = """
import json, sys
from types import SimpleNamespace
from swebench.harness import constants as c
from swebench.harness.grading import get_eval_tests_report, get_logs_eval, get_resolution_status
asked = json.load(sys.stdin)
log = f"{c.START_TEST_OUTPUT}\\n{asked['log']}\\n{c.END_TEST_OUTPUT}\\n{c.TEST_EXIT_CODE}: {asked['status']}\\n"
open(asked["file"], "w").write(log)
found, _ = get_logs_eval(SimpleNamespace(log_parser="parse_log_pytest"), asked["file"])
report = get_eval_tests_report(found, {c.FAIL_TO_PASS: asked["f2p"], c.PASS_TO_PASS: asked["p2p"]})
print(get_resolution_status(report) == c.ResolvedStatus.FULL.value)
"""
    asked = {"f2p": record.fail_to_pass, "p2p": record.pass_to_pass, "file": str(tmp_path / "log"), **log}
    argv = [SWEBENCH, "-c", program]
    ran = subprocess.run(argv, input=json.dumps(asked), capture_output=True, text=True, check=True)
    return ran.stdout.strip() == "True"


@pytest.mark.skipif(not SWEBENCH, reason="ASYNCRL_SWEBENCH_PYTHON names no interpreter with swebench")
@pytest.mark.parametrize("name", NAMES)
def test_swebenchs_own_code_grades_each_log_alike(folder, tmp_path, name):
    env = make(folder, name)
    record, repair = env.record, env.record.gold or env.record.fault

    async def both():
        try:
            patched = await judge_patch(env._fresh, record, repair, 60.0, reverse=not record.gold)
            return patched, await judge_patch(env._fresh, record, "", 60.0)
        finally:
            await env.close()
            await LauncherClient.close_shared()

    outcomes = asyncio.run(both())
    assert [outcome.grade.resolved for outcome in outcomes] == [True, False]
    logs = [{"log": outcome.output, "status": outcome.exit_status} for outcome in outcomes]
    assert [graded_by_swebench(record, log, tmp_path) for log in logs] == [True, False]


# -- records that do not hold -----------------------------------------------------------------------------------


def examined(folder, name, file):
    async def whole():
        env = make(folder, name, file)
        try:
            return await env.examine()
        finally:
            await env.close()
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def test_flaky_tests_are_told_from_differential_ones(folder):
    problem = examined(folder, "own__lib-flaky", "faulty.jsonl")
    assert problem.startswith("own__lib-flaky: ") and " flaky: tests/test_luck.py::test_luck_" in problem
    assert "test_square" not in problem and "test_nothing" not in problem


def test_a_record_whose_lists_are_wrong_is_told_and_a_good_one_is_not(folder):
    assert examined(folder, "own__lib-wrong", "faulty.jsonl") == (
        "own__lib-wrong: 1 pass before the repair: tests/test_shapes.py::test_perimeter; "
        "1 fail with the repair: tests/test_shapes.py::test_gone; "
        "1 are to keep passing and fail before the repair: tests/test_shapes.py::test_gone"
    )
    assert examined(folder, "own__lib-smith", "records.jsonl") == ""


def test_what_differs_between_equal_runs_on_either_side_is_flaky(folder):
    record = replace(
        read_records(str(folder / "records.jsonl"))["own__lib-1"],
        fail_to_pass=("a", "b"),
        pass_to_pass=("c", "d"),
    )

    def run(**found):
        return Outcome(grade(record, "", 0), "", 0, {name: status.upper() for name, status in found.items()})

    before = [
        run(a="failed", b="failed", c="passed", d="passed"),
        run(a="failed", b="passed", c="passed", d="passed"),
    ]
    after = [
        run(a="passed", b="passed", c="failed", d="passed"),
        run(a="passed", b="passed", c="failed", d="skipped"),
    ]
    found = examine(record, before, after)
    assert (found.flaky, found.unmoved, found.unrepaired, found.broken) == (("b", "d"), (), ("c",), ())


def test_bundles_lie_where_the_settings_say(folder, tmp_path):
    rows = (folder / "records.jsonl").read_text()
    (tmp_path / "records.jsonl").write_text(rows)
    found = read_records(str(tmp_path / "records.jsonl"), str(folder))
    assert {Path(record.bundle).name for record in found.values()} == {"own__lib.bundle"}
