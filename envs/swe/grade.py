"""Reads the output of a record's tests, and says whether the issue is resolved.

As SWE-bench does: every test of FAIL_TO_PASS passes, every one of PASS_TO_PASS passes or is skipped. As R2E-Gym does,
for its records: every test ends as the record says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl.envs.swe import r2e
from asyncrl.envs.swe.record import Record
from asyncrl.envs.swe.status import MAINTAINED, PASSED, WORST_FIRST


@dataclass(frozen=True, slots=True)
class Grade:
    resolved: bool
    share: float
    """Of the record's tests, those that are as they should be."""


def read(record: Record, output: str) -> dict[str, str]:
    """Return what became of each test, as the record names it."""
    return r2e.statuses(output) if record.expected else statuses(output)


def statuses(output: str) -> dict[str, str]:
    """Return what became of each test, from pytest's lines `STATUS NAME`. Of several lines about one the worst counts:
    a program that is tested can write such lines, too."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        words = line.replace(" - ", " ").split()
        if len(words) < 2 or words[0] not in WORST_FIRST or not line.startswith(words[0]):
            continue
        if words[0] == "SKIPPED" and words[1].startswith("["):
            # Counts skipped tests by their place, not by name.
            continue
        known = found.get(words[1], words[0])
        found[words[1]] = min(known, words[0], key=WORST_FIRST.index)
    return found


def grade(record: Record, output: str, exit_status: int) -> Grade:
    """Judge the output of `record.test_command`, which ended with `exit_status`."""
    found = read(record, output)
    if record.expected:
        return Grade(*r2e.as_expected(dict(record.expected), found))
    failed = any(status in ("FAILED", "ERROR") for status in found.values())
    if exit_status and not failed:
        # The output is not that of the tests that ended so.
        found = {}
    good = [is_in(test, found, PASSED) for test in record.fail_to_pass]
    good += [is_in(test, found, MAINTAINED) for test in record.pass_to_pass]
    return Grade(all(good), sum(good) / len(good))


def is_in(test: str, found: Mapping[str, str], allowed: tuple[str, ...]) -> bool:
    """Return whether a test's status is one of `allowed`. A name that a data set has cut within its parameters stands
    for all that begin so, if they agree."""
    if test in found:
        return found[test] in allowed
    if test.count("[") <= test.count("]"):
        return False
    alike = {found[name] in allowed for name in found if name.startswith(test)}
    return alike == {True}
