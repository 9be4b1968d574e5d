"""Success against tokens, on numbers worked out by hand."""

import pytest

from asyncrl.extensions.benchmarks.report import html_report, markdown_report
from asyncrl.extensions.benchmarks.results import evaluate_samples
from asyncrl.extensions.benchmarks.token_curve import success_by_tokens, token_figure, token_limits
from tests.extensions.benchmarks.test_results import samples, whole


def answers(checkpoint, outcomes, tokens):
    """Samples with the tokens that each took, task after task."""
    rows = list(samples(checkpoint, outcomes))
    for row, count in zip(rows, (one for mine in tokens for one in mine), strict=True):
        row["tokens"] = count
    return rows


FIRST = answers("a", [[1, 0], [1, 1]], [[5, 20], [10, 30]])


@pytest.mark.parametrize(
    ("tokens", "limits"),
    [
        ([5, 30], [4, 8, 16, 32]),
        ([8, 8], [4, 8]),
        ([9], [8, 16]),
        ([1, 3], [1, 2, 4]),
        ([1], [1]),
        ([0, 0], []),
        ([], []),
    ],
)
def test_limits_are_powers_of_two_that_hold_between_none_and_all(tokens, limits):
    assert token_limits([{"tokens": one} for one in tokens]) == limits


def test_a_sample_is_right_within_a_limit_that_it_kept_to():
    found = success_by_tokens(FIRST, [4, 8, 16, 32])
    assert [one["limit"] for one in found] == [4, 8, 16, 32]
    # By task: none; 1/2 and 0; 1/2 and 1/2; 1/2 and 1.
    assert [one["success"]["mean"] for one in found] == [0.0, 0.25, 0.5, 0.75]
    # (4+4+4+4, 5+8+8+8, 5+16+10+16, 5+20+10+30) / 4
    assert [one["tokens"] for one in found] == [4.0, 7.25, 11.75, 16.25]
    assert all(one["success"]["tasks"] == 2 for one in found)


def test_a_failure_of_the_agent_is_never_right_and_others_do_not_count():
    rows = answers("a", [[1, "agent"], ["infrastructure", 1]], [[4, 0], [4, 16]])
    found = evaluate_samples(rows, ["a"], 2)["checkpoints"]["a"]["by_tokens"]
    assert [(one["limit"], one["success"]["mean"]) for one in found] == [
        (2, 0.0),
        (4, 0.25),
        (8, 0.25),
        (16, 0.75),
    ]
    # The three that count take 0, 4 and 16 tokens.
    assert [one["tokens"] for one in found] == pytest.approx([4 / 3, 8 / 3, 4.0, 20 / 3])


def test_checkpoints_share_their_limits_and_end_at_their_success():
    rows = [*FIRST, *answers("b", [[1, 0], [0, 0]], [[100, 2], [2, 2]])]
    found = evaluate_samples(rows, ["a", "b"], 2)["checkpoints"]
    limits = [1, 2, 4, 8, 16, 32, 64, 128]
    assert [[one["limit"] for one in found[name]["by_tokens"]] for name in "ab"] == [limits, limits]
    for name in "ab":
        assert found[name]["by_tokens"][-1]["success"] == found[name]["score"]


def test_without_verdicts_or_tokens_there_is_no_curve():
    unjudged = [{**row, "success": None} for row in FIRST]
    assert evaluate_samples(unjudged, ["a"], 2)["checkpoints"]["a"]["by_tokens"] == []
    silent = [{**row, "tokens": 0} for row in FIRST]
    result = whole(evaluate_samples(silent, ["a"], 2))
    assert result["checkpoints"]["a"]["by_tokens"] == []
    assert "Success against tokens" not in markdown_report(result) + html_report(result, silent)


def test_the_reports_show_the_curve_as_a_table_and_as_a_figure():
    rows = [*FIRST, *answers("<b>", [[1, 0], [0, 0]], [[7, 5], [5, 5]])]
    result = whole(evaluate_samples(rows, ["a", "<b>"], 2))
    page = markdown_report(result)
    assert "## Success against tokens" in page
    assert "| a | 8 | 0.250 [" in page
    drawn = html_report(result, rows)
    assert drawn.count("<polyline") == 2
    assert "&lt;b&gt;</li>" in drawn
    assert "<b></li>" not in drawn


def test_a_curve_runs_from_the_least_limit_to_the_greatest_and_upwards():
    points = success_by_tokens(FIRST, [4, 8, 16, 32])
    drawn = token_figure({"a": points})
    # From x = 44 to 624 in three equal steps; success 0 stands at y = 220 and 1 at 12.
    assert 'points="44.0,220.0 237.3,168.0 430.7,116.0 624.0,64.0"' in drawn
    assert token_figure({"a": points[:1]}) == ""
    assert token_figure({}) == ""
