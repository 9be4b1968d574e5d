"""Several runs are told apart by their settings."""

from asyncrl.run.differences import differing_settings
from asyncrl.run.runs import read_config
from tests.run.folders import make_run


def test_settings_that_differ_are_told_by_key(tmp_path):
    one = read_config(make_run(tmp_path / "one"))
    other = read_config(make_run(tmp_path / "two", overrides=("train.learning_rate=0.25",)))
    old = {"train": {"learning_rate": 0.25}}
    rows = differing_settings({"one": one, "two": other})
    assert rows == [
        {"key": "train.learning_rate", "values": {"one": one["train"]["learning_rate"], "two": 0.25}}
    ]
    assert {"key": "env.name", "values": {"one": "gridworld", "old": None}} in differing_settings(
        {"one": one, "old": old}
    )
