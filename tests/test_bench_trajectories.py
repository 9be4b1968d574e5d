"""The bench of trajectories measures what it says, on a few of them."""

from tests.scripts import load_script


def test_a_folder_is_opened_and_each_filter_finds_what_was_written():
    found = load_script("bench/bench_trajectories").measure_opening(1000)
    assert (found["trajectories"], found["files"]) == (512, 1)
    rows = {name: value["rows"] for name, value in found.items() if name.startswith("filter by")}
    assert rows.pop("filter by version") == rows.pop("filter by text") == 0
    assert all(0 < count < 512 for count in rows.values())
