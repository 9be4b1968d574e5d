"""Waiting ends with what is waited for, or with what would have made it."""

import subprocess
import sys

import pytest

from tests.waiting import running, wait_for_url, wait_until


def test_the_first_true_answer_is_returned():
    answers = iter([0, "", "there"])
    assert wait_until(lambda: next(answers)) == "there"


def test_what_has_ended_is_not_waited_for(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    with pytest.raises(AssertionError, match="has ended"):
        wait_for_url(tmp_path / "ready.json", running(process))


def test_waiting_has_a_limit():
    with pytest.raises(AssertionError, match="does not happen"):
        wait_until(lambda: False, limit_s=0.05)
