"""The tests are shared out in lots that stay together, the longest first."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.distribution import SECONDS, TOGETHER, longest_first, lot, seconds

ROOT = Path(__file__).parent.parent


def test_a_file_or_a_page_is_a_lot_and_some_files_share_one():
    assert lot("tests/run/test_lives.py::test_one[a::b]") == "tests/run/test_lives.py"
    page = "tests/docs/test_pages.py::test_every_block_runs_as_printed[recipes/sql_grpo/README.md:6]"
    assert lot(page) == "tests/docs/recipes/sql_grpo/README.md"
    assert lot("tests/docs/test_pages.py::test_settings_named_in_the_text_exist[docs/lora.md]") == (
        "tests/docs/docs/lora.md"
    )
    assert lot("tests/docs/test_pages.py::test_the_package") == "tests/docs/test_pages.py"
    assert lot("tests/train/parts/test_scoring.py::test_one") == lot(
        "tests/services/engine/test_engine.py::test_two"
    )


def test_long_lots_come_first_and_each_stays_in_order():
    one, other = "tests/run/test_lives.py", "tests/envs/test_x.py"
    names = [f"{one}::b", f"{one}::a", "tests/test_chaos.py::z", f"{other}::m"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    longest_first(items)
    assert [item.nodeid for item in items] == [names[2], names[3], names[0], names[1]]


def test_a_lot_takes_what_is_said_of_the_longest_beginning_of_its_name():
    browser = "tests/envs/test_browser.py"
    assert seconds(browser) == SECONDS[browser] > SECONDS["tests/envs/"] == seconds("tests/envs/test_x.py")
    assert seconds("tests/run/test_lives.py") == 0


@pytest.mark.parametrize(
    ("fixture", "shared"),
    [
        ("two_ranks", "two ranks"),
        ("engine_url", "the session's engine"),
        ("publish_weights", "the session's engine"),
    ],
)
def test_all_who_use_what_takes_long_to_start_share_a_lot(fixture, shared):
    asks = re.compile(rf"def \w+\([^)]*\b{fixture}\b[^)]*\):")
    users = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if asks.search(file.read_text())
    ]
    assert len(users) >= 2
    assert {lot(f"{user}::test") for user in users} == {shared}


def test_files_that_are_named_are_there():
    lots = {name.removeprefix("tests/docs/") for name in SECONDS}
    named = (lots | set(TOGETHER)) - set(TOGETHER.values())
    assert [name for name in named if not (ROOT / name).exists()] == []
