"""Figures of curves, by coordinates worked out by hand."""

import pytest

from asyncrl.extensions.benchmarks.curve_figure import Point, curve_figure, round_values


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (90, 1100, [100, 200, 500, 1000]),
        (0.0015, 0.02, [0.002, 0.005, 0.01, 0.02]),
        (300, 400, [300, 400]),
        (10, 12, [10, 12]),
    ],
)
def test_ticks_are_round_numbers_between_the_bounds(low, high, found):
    assert round_values(low, high) == pytest.approx(found)


def test_a_point_has_its_interval_and_lines_are_told_apart_by_name():
    lines = {
        "<a>": [Point(100, 0.5, 0.25, 0.75), Point(400, 1.0, 0.75, 1.0)],
        "b": [Point(200, 0.0), Point(400, 0.5)],
    }
    drawn = curve_figure("By <x>", "what it is", "tokens", lines)
    # x runs from 44 to 624; success 0 stands at y = 220 and 1 at 12. 200 is the middle of 100 and 400.
    assert 'points="44.0,116.0 624.0,12.0"' in drawn
    assert 'points="334.0,220.0 624.0,116.0"' in drawn
    assert '<line class="interval c0" x1="44.0" y1="168.0" x2="44.0" y2="64.0"/>' in drawn
    assert drawn.count('class="interval ') == 2
    assert "&lt;a&gt;</li>" in drawn and "By &lt;x&gt;" in drawn and "<a>" not in drawn
    assert 'stroke-dasharray="7 4"' in drawn


def test_nothing_is_drawn_of_single_points_or_without_a_distance_between_them():
    assert curve_figure("t", "a", "x", {"a": [Point(1, 0.5)], "b": [Point(2, 0.5)]}) == ""
    assert curve_figure("t", "a", "x", {"a": [Point(7, 0.5), Point(7, 0.6)]}) == ""
    assert curve_figure("t", "a", "x", {}) == ""
