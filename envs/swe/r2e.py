"""Records of R2E-Gym: their fields, the tests in their images, and what their own tool makes of the tests' output.

An image holds the repository at the parent of the commit that repairs it, its Python in `.venv`, the tests in
`/r2e_tests`, and `run_tests.sh`, which runs them. The repair is right if each test ends as the record says, tests that
fail with it included, and there is no other.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from asyncrl.envs.swe.status import WORST_FIRST
from asyncrl.extensions.sandbox_images.dockerfile import PATH

VARIABLES = {"PATH": f"/testbed/.venv/bin:/root/.local/bin:/root/.cargo/bin:{PATH}"}
"""Of the agent's programs and the tests; what an image says of its PATH is not asked."""
TESTS, SCRIPT = "/r2e_tests", "/r2e_run_tests.sh"
_OPEN = "chmod a+rx /root 2>/dev/null; chmod -R a+rX /root/.local 2>/dev/null; "
"""The interpreter of `.venv` lies below root's home, which no session's user may enter."""
HIDE = f"{_OPEN}rm -rf {TESTS} r2e_tests run_tests.sh /root/r2e_tests /root/expected_test_output.json"
"""What is done to the agent's image."""
KEEP = f"{_OPEN}rm -rf r2e_tests && mv run_tests.sh {SCRIPT} && chmod -R a+rX {TESTS} {SCRIPT}"
"""What is done to the judge's."""
PLACE = f"rm -rf r2e_tests run_tests.sh && cp -r {TESTS} r2e_tests && cp {SCRIPT} run_tests.sh"
"""Puts the tests where `run_tests.sh` finds them, whatever the agent has left there."""
NOT_LEFT = ("./.venv",)
"""Of a work folder: what belongs to the image."""
STATUSES = ("PASSED", "FAILED", "ERROR")
SUMMARY = "short test summary info"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\r")
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


def is_r2e(fields: Mapping[str, Any]) -> bool:
    return "expected_output_json" in fields and "parsed_commit_content" in fields


def name(fields: Mapping[str, Any]) -> str:
    return str(fields.get("instance_id") or f"{fields['repo_name']}__{fields['commit_hash']}")


def instruction(fields: Mapping[str, Any]) -> str:
    """Return the issue, without the marks around it."""
    text = str(fields["problem_statement"])
    marked = _ISSUE.search(text)
    return marked[1].strip() if marked else text


def expected_statuses(text: str) -> tuple[tuple[str, str], ...]:
    """Return what must become of each test. Raises `ValueError` where that is no object of texts, or empty."""
    found = json.loads(text) if isinstance(text, str) else text
    if not isinstance(found, dict) or not found or not all(value in STATUSES for value in found.values()):
        raise ValueError(f"expected_output_json must give each test one of {', '.join(STATUSES)}")
    return tuple(sorted({_key(test): status for test, status in sorted(found.items())}.items()))


def statuses(output: str) -> dict[str, str]:
    """Return what became of each test by its class and name, from the lines of pytest's summary.

    Of several lines about one test the worst counts, of several summaries all, and a line has the status that it begins
    with: a program that is tested can write such lines, too.
    """
    _, found, summary = _COLOURS.sub("", output).partition(SUMMARY)
    by_test: dict[str, str] = {}
    for line in summary.splitlines() if found else ():
        status, _, test = line.strip().partition(" ")
        if status in STATUSES:
            key = _key(".".join(test.split("::")[1:]))
            by_test[key] = min(by_test.get(key, status), status, key=WORST_FIRST.index)
    return by_test


def _key(test: str) -> str:
    return _COLOURS.sub("", test).split(" - ")[0]


def as_expected(expected: Mapping[str, str], found: Mapping[str, str]) -> tuple[bool, float]:
    """Return whether every test ended as it must and no other ran, and the share of those that did."""
    good = sum(found.get(test) == status for test, status in expected.items())
    return good == len(expected) == len(found), good / len(expected)


def gold_patch(text: str) -> str:
    """Return the commit's changes to Python files that are no tests, as a patch."""
    commit = json.loads(text) if isinstance(text, str) else text
    return "".join(
        _file_patch(file) for file in commit.get("file_diffs") or () if not file.get("is_binary_file")
    )


def _file_patch(file: Mapping[str, Any]) -> str:
    path = str(file["header"]["file"]["path"])
    if not path.endswith(".py") or _is_test(path):
        return ""
    lines = [f"diff --git a/{path} b/{path}"]
    if file["header"].get("misc_line"):
        lines.append(file["header"]["misc_line"])
    if file.get("minus_file") and file.get("plus_file"):
        lines += [f"--- {file['minus_file']['path']}", f"+++ {file['plus_file']['path']}"]
    for hunk in file.get("hunks") or ():
        said = hunk["descriptor"]
        ranges = f"@@ -{_range(said['old_range'])} +{_range(said['new_range'])} @@"
        lines.append(f"{ranges} {said['section']}" if said.get("section") else ranges)
        lines += [f"{_SIGNS[line['type']]}{line['content']}" for line in hunk["line_group"]["all_lines"]]
    return "\n".join(lines) + "\n"


def _is_test(path: str) -> bool:
    *folders, last = path.split("/")
    return (
        last.startswith("test_")
        or posixpath.splitext(last)[0].endswith("_test")
        or any(folder in ("test", "tests", "Test", "Tests") for folder in folders)
    )


def _range(said: Mapping[str, Any]) -> str:
    return f"{said['start']}" if said.get("length") is None else f"{said['start']},{said['length']}"
