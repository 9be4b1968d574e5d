"""A failed test is run once more by itself: one that depends on its neighbours is told from one that is broken."""

import pytest

from tests.again import MOST, run_again

TESTS = """
from pathlib import Path

def test_that_passes():
    pass

def test_that_fails():
    assert Path(__file__).name == "another"
"""


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "test_some.py"
    path.write_text(TESTS)
    return [f"{path}::test_that_{what}" for what in ("passes", "fails")]


@pytest.mark.slow
def test_only_what_passes_by_itself_is_forgiven_and_named(names, capfd):
    passes, fails = names
    assert run_again([passes]) == 0
    assert f"PASSED ONLY BY ITSELF, mend it: {passes}" in capfd.readouterr().out
    assert run_again([passes, fails]) == 1
    assert f"failed again: {fails}" in capfd.readouterr().out


def test_many_failures_are_not_run_again(names):
    assert run_again(names[:1] * (MOST + 1)) == 1


def test_an_unsuccessful_run_without_a_failed_test_stays_one():
    assert run_again([]) == 1
