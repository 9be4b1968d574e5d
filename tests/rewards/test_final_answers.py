"""Who only asks for the final answer of a text gets it from the extension that reads answers."""

import subprocess
import sys

from asyncrl.rewards.final_answers import final_answers


def test_answers_are_found_and_counted_by_their_value():
    read = final_answers()
    assert read.extract(r"<think>41</think> So \boxed{42}.") == "42"
    assert read.extract("") is None
    assert read.ballot("0.5") == read.ballot(r"\frac{1}{2}") != read.ballot("5")
    assert read.ballot(None) is None


def test_who_asks_imports_no_extension_before():
    code = """
import sys, asyncrl.rewards, asyncrl.rewards.final_answers, asyncrl.rewards.signatures, asyncrl.rewards.golds
sys.exit(sum(name.startswith("asyncrl.extensions.") and not name.endswith(".table") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
