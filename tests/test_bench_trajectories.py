"""The bench of trajectories measures what it says, on a few of them."""

import pytest

from asyncrl.errors import ConfigError
from tests.scripts import load_script


def chromium():
    pytest.importorskip("playwright", reason="playwright is not installed")
    from asyncrl.envs.browser.chromium import find_chromium

    try:
        find_chromium()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_run_is_opened_with_and_without_a_browser_and_each_filter_finds_what_was_written():
    bench = load_script("bench/bench_trajectories")
    with bench.run_of(1000) as folder:
        found = bench.measure_opening(folder)
        assert (found["trajectories"], found["files"]) == (512, 1)
        rows = {name: value["rows"] for name, value in found.items() if name.startswith("filter by")}
        assert rows.pop("filter by version") == rows.pop("filter by text") == 0
        assert all(0 < count < 512 for count in rows.values())
        chromium()
        page = bench.measure_page(folder)
    assert page.keys() == {"open_s", *(f"filter by {label}" for label in bench.FILTERS)}
    assert all(seconds > 0 for seconds in page.values())
