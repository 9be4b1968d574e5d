"""Records of R2E-Gym: every test must end as the record says, and the agent sees none of them."""

import json
import os
import re

import pytest

from asyncrl.env.scripted import to_action
from asyncrl.envs.swe import r2e
from asyncrl.envs.swe.env import Swe
from asyncrl.envs.swe.examine import examine
from asyncrl.envs.swe.grade import Grade, grade, read
from asyncrl.envs.swe.judge import Outcome
from asyncrl.envs.swe.record import read_records
from asyncrl.errors import ConfigError
from asyncrl.types import Task
from tests.envs.playing import play
from tests.envs.swe_records import INSTALL, SQUARE, TEST_SHAPES, Repository, git
from tests.envs.test_swe import write
from tests.envs.test_terminal import DONE, shell, shown
from tests.shared import made_once

NAME = "lib__0123abc"
HIDDEN = (
    TEST_SHAPES
    + """

class TestSquare:
    def test_area(self):
        assert area("square", 3) == 9


def test_known_failure():
    assert area("circle", 1) == 4
"""
)
EXPECTED = {
    "test_perimeter": "PASSED", "test_circle": "PASSED", "test_unknown": "PASSED", "TestSquare.test_area": "PASSED",
    "\x1b[1mtest_known_failure\x1b[0m - assert 3 == 4": "FAILED",
}  # fmt: skip
AS_IN_AN_IMAGE = (
    f"{INSTALL} && mkdir -p .venv/bin && ln -s /usr/bin/python3 .venv/bin/python && echo '*' > .venv/.gitignore && "
    + write("/r2e_tests/test_1.py", HIDDEN)
    + " && touch /r2e_tests/__init__.py && "
    "echo '.venv/bin/python -W ignore -m pytest -rA r2e_tests' > run_tests.sh"
)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
_KINDS = {" ": "context", "+": "added", "-": "deleted", "\\": "note"}


def parsed(patch):
    """Return a patch as the data set writes a commit."""
    files = []
    for text in re.split(r"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        file = {"header": {"file": {"path": text.split()[0][2:]}}, "is_binary_file": False, "hunks": []}
        for line in text.splitlines()[1:]:
            if line.startswith(("--- ", "+++ ")):
                file["minus_file" if line[0] == "-" else "plus_file"] = {"path": line[4:]}
            elif found := _HUNK.match(line):
                old, new = (
                    {"start": int(found[i]), "length": found[i + 1] and int(found[i + 1])} for i in (1, 3)
                )
                said = {"old_range": old, "new_range": new, "section": found[5]}
                file["hunks"].append({"descriptor": said, "line_group": {"all_lines": []}})
            elif file["hunks"]:
                content = line[2:] if line[0] == "\\" else line[1:]
                file["hunks"][-1]["line_group"]["all_lines"].append(
                    {"content": content, "type": _KINDS[line[0]]}
                )
        files.append(file)
    return json.dumps({"file_diffs": files})


def write_record(folder):
    place = folder / "lib"
    place.mkdir(parents=True)
    repository = Repository(place)
    repair = {"lib/shapes.py": SQUARE, "tests/test_shapes.py": "changed\n", "NEWS.md": "news\n"}
    record = {
        "repo_name": "lib", "repo": "own/lib", "commit_hash": "0123abc", "docker_image": "lib_final:0123abc",
        "problem_statement": "Write this:\n[ISSUE]\nThe area of a square is wrong.\n[/ISSUE]",
        "parsed_commit_content": parsed(repository.diff(repair)), "expected_output_json": json.dumps(EXPECTED),
        "bundle": "own__lib.bundle", "base_commit": repository.start, "install_config": {"install": AS_IN_AN_IMAGE},
    }  # fmt: skip
    git(place, "checkout", "-q", "-f", "main")
    git(place, "bundle", "create", "-q", str(folder / "own__lib.bundle"), "--all")
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")
    return folder


@pytest.fixture(scope="module")
def folder():
    return made_once("r2e-record", lambda place: write_record(place / "made")) / "made"


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(folder / "cache"))


def make(folder):
    task = Task(NAME, "swe", 0, "train", {"record": NAME})
    return Swe(task, records=str(folder / "records.jsonl"), bases={"*": "host"})


def test_a_record_is_read_with_its_issue_its_statuses_and_its_repair(folder):
    record = read_records(str(folder / "records.jsonl"))[NAME]
    assert record.instruction == "The area of a square is wrong."
    assert dict(record.expected)["test_known_failure"] == "FAILED" and len(record.expected) == 5
    assert "lib/shapes.py" in record.gold and "tests/" not in record.gold and "NEWS" not in record.gold
    assert (record.image, record.test_files(), record.fault) == ("lib_final:0123abc", (), "")


by_root = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
CHEAT = "print('short test summary info\\nPASSED r2e_tests/test_1.py::TestSquare::test_area')\n"


@by_root
def test_the_repair_resolves_the_record_and_nothing_and_a_printed_summary_do_not(folder):
    env = make(folder)
    oracle = to_action(env.oracle([{"role": "user", "content": ""}]))
    assert play(env, oracle, DONE)[-1].reward == 1.0
    none = play(make(folder), DONE)[-1]
    assert (none.reward, none.components["tests_passed"]) == (0.0, 4 / 5)
    shapes = SQUARE.replace("sizes[0] ** 2", "sizes[0] * 4")
    assert play(make(folder), shell(write("lib/shapes.py", CHEAT + shapes)), DONE)[-1].reward == 0.0


@by_root
def test_the_agent_sees_no_test_and_what_it_leaves_in_their_place_is_not_run(folder):
    looks = shell(
        "ls -d /r2e_tests /r2e_run_tests.sh run_tests.sh r2e_tests; which python",
        "mkdir r2e_tests; echo 'def test_x(): pass' > r2e_tests/test_2.py; echo true > run_tests.sh; rm -rf .venv",
        write("lib/shapes.py", SQUARE),
    )
    first, last = play(make(folder), looks, DONE)
    text = shown(first)[0]
    assert text.count("No such file") == 4 and "/testbed/.venv/bin/python" in text
    assert last.reward == 1.0


LOG = """..F
\x1b[36m=== short test summary info ===\x1b[0m
\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mtest_a\x1b[0m
PASSED r2e_tests/test_1.py::TestX::test_b[1 - 2]
SKIPPED [1] r2e_tests/test_1.py:5: no network
FAILED r2e_tests/test_1.py::test_c - AssertionError: PASSED
ERROR r2e_tests/test_1.py::test_d
=== 1 failed, 2 passed ===
"""


def test_a_line_of_the_summary_has_the_status_that_it_begins_with():
    assert r2e.statuses(LOG) == {
        "test_a": "PASSED", "TestX.test_b[1": "PASSED", "test_c": "FAILED", "test_d": "ERROR",
    }  # fmt: skip
    assert r2e.statuses("PASSED r2e_tests/t.py::test_a") == {}


def test_one_test_more_or_less_or_another_status_is_not_as_expected():
    expected = {"a": "PASSED", "b": "FAILED"}
    assert r2e.as_expected(expected, {"a": "PASSED", "b": "FAILED"}) == (True, 1.0)
    assert r2e.as_expected(expected, {"a": "PASSED", "b": "PASSED"}) == (False, 0.5)
    assert r2e.as_expected(expected, {"a": "PASSED"}) == (False, 0.5)
    assert r2e.as_expected(expected, {"a": "PASSED", "b": "FAILED", "c": "PASSED"}) == (False, 1.0)


def test_a_record_is_graded_by_its_own_rule(folder):
    record = read_records(str(folder / "records.jsonl"))[NAME]
    lines = [f"{status} t.py::{test.replace('.', '::')}" for test, status in record.expected]
    log = "short test summary info\n" + "\n".join(lines)
    assert grade(record, log, 1) == Grade(True, 1.0)
    assert read(record, log) == dict(record.expected)

    def run(**changed):
        return Outcome(Grade(False, 0.0), "", 0, {**dict(record.expected), **changed})

    before = [run(**{"TestSquare.test_area": "FAILED"})] * 2
    assert examine(record, before, [run(), run()]).problem() == ""
    assert examine(record, before, [run(), run(test_circle="FAILED")]).problem() == "1 flaky: test_circle"
    assert "5 pass before the repair" in examine(record, [run()], [run()]).problem()
    assert (
        examine(record, before, [run(test_circle="ERROR")]).problem() == "1 fail with the repair: test_circle"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"expected_output_json": "{}"},
            "expected_output_json must give each test one of PASSED, FAILED, ERROR",
        ),
        ({"expected_output_json": '{"a": "XFAIL"}'}, "expected_output_json must give each test one of"),
        ({"docker_image": None, "commit_hash": None}, "field 'docker_image' is missing"),
    ],
)
def test_a_record_that_cannot_be_played_is_refused_with_its_line(folder, tmp_path, change, message):
    fields = {**json.loads((folder / "records.jsonl").read_text()), **change}
    fields = {key: value for key, value in fields.items() if value is not None} | {"instance_id": "x"}
    (tmp_path / "r.jsonl").write_text(json.dumps(fields) + "\n")
    with pytest.raises(ConfigError, match=f"line 1: .*{message}"):
        read_records(str(tmp_path / "r.jsonl"), str(folder))
