"""Tells records that hold from those that do not: tests that flicker, and tests that the repair does not change.

The tests are run several times on the repository as it is and with its repair. A test is differential if it fails
before and passes after, every time; flaky if equal runs differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncrl.envs.swe.grade import is_in
from asyncrl.envs.swe.judge import Outcome
from asyncrl.envs.swe.record import Record
from asyncrl.envs.swe.status import MAINTAINED, PASSED

RUNS = 3


@dataclass(frozen=True, slots=True)
class Examined:
    flaky: tuple[str, ...]
    """Tests whose equal runs differ."""
    unmoved: tuple[str, ...]
    """Of FAIL_TO_PASS: those that pass before the repair already."""
    unrepaired: tuple[str, ...]
    """Of either list: those that fail with the repair."""
    broken: tuple[str, ...]
    """Of PASS_TO_PASS: those that fail before the repair."""

    def problem(self) -> str:
        """Return what is wrong with the record; "" for nothing."""
        parts = [
            (self.flaky, "flaky"), (self.unmoved, "pass before the repair"), (self.unrepaired, "fail with the repair"),
            (self.broken, "are to keep passing and fail before the repair"),
        ]  # fmt: skip
        return "; ".join(f"{len(tests)} {what}: {', '.join(tests[:3])}" for tests, what in parts if tests)


def examine(record: Record, before: Sequence[Outcome], after: Sequence[Outcome]) -> Examined:
    """Compare equal runs, and both sides. before, after: one or more runs without and with the repair."""
    if record.expected:
        return _examine_expected(dict(record.expected), before, after)
    tests = (*record.fail_to_pass, *record.pass_to_pass)
    first, last = before[0].statuses, after[0].statuses

    def differs(test: str) -> bool:
        return any(len({is_in(test, run.statuses, PASSED) for run in runs}) > 1 for runs in (before, after))

    flaky = tuple(test for test in tests if differs(test))
    steady = [test for test in tests if test not in flaky]
    to_pass = [test for test in record.fail_to_pass if test in steady]
    to_keep = [test for test in record.pass_to_pass if test in steady]
    return Examined(
        flaky,
        tuple(test for test in to_pass if is_in(test, first, PASSED)),
        tuple(test for test in to_pass if not is_in(test, last, PASSED))
        + tuple(test for test in to_keep if not is_in(test, last, MAINTAINED)),
        tuple(test for test in to_keep if not is_in(test, first, MAINTAINED)),
    )


def _examine_expected(
    expected: Mapping[str, str], before: Sequence[Outcome], after: Sequence[Outcome]
) -> Examined:
    """The same for a record that says of every test how it ends."""
    first, last = before[0].statuses, after[0].statuses
    tests = sorted({*expected, *last})
    flaky = tuple(
        test
        for test in tests
        if any(len({run.statuses.get(test) for run in runs}) > 1 for runs in (before, after))
    )
    unmoved = tuple(expected) if first == expected else ()
    return Examined(
        flaky, unmoved, tuple(t for t in tests if t not in flaky and last.get(t) != expected.get(t)), ()
    )
