"""Success against budgets of thinking, on numbers worked out by hand."""

import json

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.budget_curve import Budget, Price, budget_curve, parse_prices
from asyncrl.extensions.benchmarks.leaderboard_command import write_leaderboard
from tests.extensions.benchmarks.test_leaderboard import known, suite, write


def scored(mean, tokens, read=None):
    interval = {"mean": mean, "ci_low": mean / 2, "ci_high": mean, "tasks": 4}
    return {"score": interval, "tokens": tokens, "read_tokens": read}


def test_points_run_from_the_shortest_budget_to_none_and_cost_what_is_read_and_sampled():
    measured = [
        (Budget(), scored(0.9, 900, 1000)),
        (Budget(most=512), scored(0.5, 500, 1000)),
        (Budget(most=128), scored(0.25, 100, 1000)),
        (Budget(least=64), scored(0.9, 1000, None)),
        (Budget(most=4), {"score": None}),
    ]
    found = budget_curve(measured, Price(read=0.1, sampled=2.0))
    assert [(one["most_thinking"], one["least_thinking"]) for one in found] == [
        (128, None),
        (512, None),
        (None, None),
        (None, 64),
    ]
    assert [one["tokens"] for one in found] == [100, 500, 900, 1000]
    # (1000 * 0.1 + 100 * 2) / 10^6; what is read is not known of the last.
    assert [one["cost"] for one in found[:3]] == pytest.approx([0.0003, 0.0011, 0.0019])
    assert found[3]["cost"] is None
    assert {one["cost"] for one in budget_curve(measured)} == {None}


def test_a_price_is_for_all_checkpoints_or_for_one():
    assert parse_prices(["0.1,0.4"], ["a", "b"]) == {"a": Price(0.1, 0.4), "b": Price(0.1, 0.4)}
    both = parse_prices(["b=1,2", "0.1,0.4"], ["a", "b"])
    assert both == parse_prices(["0.1,0.4", "b=1,2"], ["a", "b"])
    assert both == {"a": Price(0.1, 0.4), "b": Price(1, 2)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0.1", "must be READ,SAMPLED"),
        ("0.1,-1", "must be READ,SAMPLED"),
        ("nan,1", "must be READ,SAMPLED"),
        ("c=1,2", "'c' was not evaluated; allowed: a"),
    ],
)
def test_a_price_that_says_nothing_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_prices([given], ["a"])


def budgets(folder, **more):
    """Evaluations of two checkpoints on twelve tasks: the longer they think, the more is right."""
    for most, right in ((128, 3), (512, 9), (None, 12)):
        given = suite({"svamp": known("svamp")}, most_thinking=most, least_thinking=None)
        outcomes = {(name, "svamp"): [1] * right + [0] * (12 - right) for name in ("old", "new")}
        write(folder / f"e{most}", given, outcomes)
        file = folder / f"e{most}" / "samples.jsonl"
        rows = [json.loads(line) | {"tokens": most or 900} | more for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_evaluations_that_differ_in_their_budget_are_one_curve_of_a_leaderboard(tmp_path, capsys):
    budgets(tmp_path, read_tokens=1000)
    assert main(["leaderboard", str(tmp_path), "--price", "0.1,2", "--price", "new=0,1"]) == 0
    said = capsys.readouterr().out
    assert "svamp, thinking at most 128 0.250" in said
    board = json.loads((tmp_path / "leaderboard.json").read_text())
    assert [(one["checkpoint"], one["on"]) for one in board["budgets"]] == [
        ("old", "svamp"),
        ("new", "svamp"),
    ]
    points = board["budgets"][0]["points"]
    assert [one["success"]["mean"] for one in points] == [0.25, 0.75, 1.0]
    assert [one["tokens"] for one in points] == [128, 512, 900]
    assert [one["cost"] for one in points] == pytest.approx([0.000356, 0.001124, 0.0019])
    assert board["budgets"][1]["points"][0]["cost"] == pytest.approx(0.000128)
    page = (tmp_path / "leaderboard.md").read_text()
    assert "| old | svamp | at most 128 | 0.250 [0.089, 0.532] | 128 | 0.000356 |" in page
    assert "| old | svamp | no bounds | 1.000 [" in page
    drawn = (tmp_path / "leaderboard.html").read_text()
    assert drawn.count("<polyline") == 4
    assert drawn.count('class="interval ') == 12


def test_without_prices_nothing_is_said_of_cost_and_prices_without_budgets_are_refused(tmp_path):
    budgets(tmp_path / "a")
    assert main(["leaderboard", str(tmp_path / "a")]) == 0
    page = (tmp_path / "a" / "leaderboard.md").read_text()
    assert "| old | svamp | at most 128 | 0.250 [0.089, 0.532] | 128 |\n" in page
    assert "cost |" not in page
    write(tmp_path / "b", suite({"svamp": known("svamp")}), {("old", "svamp"): [1] * 12})
    with pytest.raises(ConfigError, match="holds no evaluations that differ in their budget"):
        write_leaderboard(tmp_path / "b", tmp_path / "b", "", ["1,2"])
