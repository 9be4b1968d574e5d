"""Results from samples, on numbers worked out by hand."""

import pytest

from asyncrl.extensions.benchmarks.report import html_report, markdown_report
from asyncrl.extensions.benchmarks.results import evaluate_samples


def samples(checkpoint, outcomes, part="walk", **more):
    """Rows of tasks t0, t1, ...: for each the successes of its samples, or a failure's class instead."""
    for number, values in enumerate(outcomes):
        for index, value in enumerate(values):
            failed = isinstance(value, str)
            yield {
                "id": f"{checkpoint}:{part}-t{number}:{index}",
                "checkpoint": checkpoint,
                "part": part,
                "env": "gridworld",
                "task": f"{part}-t{number}",
                "sample": index,
                "tags": ["all", part],
                "difficulty": "1",
                "reward": 0.0 if failed else 2.0 * value,
                "success": None if failed else bool(value),
                "status": "failed" if failed else "finished",
                "failure": value if failed else None,
                "error": "broke\nat line 1" if failed else "",
                "turns": 2,
                "tokens": 10,
                "messages": [
                    {"role": "user", "content": "<b>go</b>"},
                    {"role": "assistant", "content": "north"},
                ],
            } | more


def test_rates_are_over_tasks_and_failures_of_the_infrastructure_leave_them():
    rows = list(samples("a", [[1, 1], [1, 0], [0, "infrastructure"], ["infrastructure", "environment"]]))
    found = evaluate_samples(rows, ["a"], 2)["checkpoints"]["a"]
    assert (found["samples"], found["counted"]) == (8, 5)
    assert found["failed"] == {"infrastructure": 2, "environment": 1}
    assert found["score"]["mean"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found["score"]["tasks"] == 3
    assert found["reward"]["mean"] == pytest.approx(1.0)
    # Both samples count in the first two tasks only.
    assert {k: (one["mean"], one["tasks"]) for k, one in found["pass_at"].items()} == {
        "1": (pytest.approx(0.5), 3),
        "2": (1.0, 2),
    }
    assert found["pass_hat"]["2"]["mean"] == 0.5
    assert found["failures"][0] == {
        "failure": "infrastructure",
        "part": "walk",
        "error": "broke",
        "samples": 2,
    }


def test_failures_of_the_agent_are_samples_that_scored_nothing():
    found = evaluate_samples(list(samples("a", [[1], ["agent"]])), ["a"], 1)["checkpoints"]["a"]
    assert (found["score"]["mean"], found["counted"], found["failed"]) == (0.5, 2, {"agent": 1})


def test_a_part_without_verdicts_scores_by_reward():
    rows = [*samples("a", [[1], [0]]), *samples("a", [[0.25]], part="free", success=None)]
    found = evaluate_samples(rows, ["a"], 1)["checkpoints"]["a"]
    assert found["parts"]["free"]["score"]["mean"] == 0.5
    assert found["parts"]["walk"]["score"]["mean"] == 0.5
    assert found["tags"]["all"]["score"]["tasks"] == 3
    assert found["tags"]["free"]["pass_at"] == {}, "nothing was judged"


def test_every_checkpoint_is_compared_with_the_first_on_all_tasks_and_by_part():
    rows = [*samples("a", [[0, 1]] * 8), *samples("b", [[1, 1]] * 7 + [[0, 0]]), *samples("c", [[0, 1]] * 8)]
    found = evaluate_samples(rows, ["a", "b", "c"], 2)["comparisons"]
    assert [(one["second"], one["part"]) for one in found] == [
        ("b", None),
        ("c", None),
        ("b", "walk"),
        ("c", "walk"),
    ]
    b, c, *_ = found
    # Seven tasks gain 1/2 and one loses 1/2.
    assert b["difference"] == pytest.approx(3 / 8)
    assert (b["better"], b["worse"]) == (7, 1)
    # Of 2^8 ways to swap, one of 8 tasks or none goes the other way: 2 * (1 + 8) are as extreme; Holm doubles it.
    assert b["p_value"] == pytest.approx(18 / 256)
    assert b["p_holm"] == pytest.approx(36 / 256)
    assert b["regressions"] == [{"task": "walk-t7", "first": 0.5, "second": 0.0}]
    assert (c["difference"], c["p_holm"], c["regressions"]) == (0.0, 1.0, [])


def test_the_worst_samples_are_those_that_did_not_succeed_and_never_failures_of_others():
    found = evaluate_samples(list(samples("a", [[1, 0], ["infrastructure", 1]])), ["a"], 2)
    assert found["checkpoints"]["a"]["worst"] == ["a:walk-t0:1"]


def test_a_checkpoint_of_which_nothing_counts_has_no_rate_and_the_report_says_so():
    rows = list(samples("a", [["infrastructure"]]))
    result = whole(evaluate_samples(rows, ["a"], 1))
    assert result["checkpoints"]["a"]["score"] is None
    assert "| a | none counted | none counted | 0 of 1 | infrastructure 1 |" in markdown_report(result)
    assert "none counted" in html_report(result, rows)


def test_the_reports_say_what_the_results_say_and_quote_nothing_as_markup():
    rows = [*samples("a", [[0, 1]] * 8), *samples("b", [[1, 1]] * 7 + [[0, 0]])]
    result = whole(evaluate_samples(rows, ["a", "b"], 2))
    text = markdown_report(result)
    assert "| b | a | all | +0.375 [" in text
    assert "## Regressions of b" in text and "| walk-t7 | 0.500 | 0.000 |" in text
    page = html_report(result, rows)
    assert "&lt;b&gt;go&lt;/b&gt;" in page and "<b>go" not in page
    assert "http" not in page, "nothing is loaded from elsewhere"


def whole(found):
    shared = {"suite": "s", "version": 1, "description": "", "samples": 2, "temperature": 1.0}
    return {**shared, "tasks": 8, "asyncrl": "0", "complete": True, **found}


def test_votes_choose_among_the_answers_of_a_task_and_the_report_shows_them():
    answers = {0: "18", 1: r"\$18", 2: "20", 3: "20"}
    rows = list(samples("a", [[1, 1, 0, 0], [0, 0, 0, 0]]))
    for row in rows:
        row["extracted"] = answers[row["sample"]] if row["task"] == "walk-t0" else None
        row["tokens"] = 10 + row["sample"]
    result = evaluate_samples(rows, ["a"], 4)
    votes = result["checkpoints"]["a"]["votes"]
    # One task has answers. Of its 6 pairs one is right twice, one wrong twice, four are ties; all four are a tie, too.
    assert votes["majority"]["2"]["mean"] == pytest.approx((1 + 4 * 0.5) / 6)
    assert votes["majority"]["4"]["mean"] == pytest.approx(0.5)
    assert votes["majority"]["4"]["tasks"] == 1
    # The two shortest are right: a pair's shortest is wrong only where both are the longest.
    assert votes["shortest"]["2"]["mean"] == pytest.approx(5 / 6)
    assert votes["shortest"]["4"]["mean"] == 1.0
    assert votes["shortest majority"]["4"]["mean"] == 1.0
    page = markdown_report(whole(result))
    assert "| a | shortest | 4 | 1.000" in page


def test_a_judge_chooses_where_all_samples_have_its_score():
    rows = list(samples("a", [[1, 0, 0, 1]]))
    for row, score, answer in zip(rows, (0.9, 0.2, 0.4, 0.1), ("7", "8", "8", "7"), strict=True):
        row["extracted"] = answer
        row["components"] = {"judge": score}
    votes = evaluate_samples(rows, ["a"], 4)["checkpoints"]["a"]["votes"]
    # Of the six draws of two the best is right in the three with the first sample.
    assert votes["best by judge"]["2"]["mean"] == pytest.approx(3 / 6)
    # 7 has 1.0, 8 has 0.6.
    assert votes["majority weighed by judge"]["4"]["mean"] == 1.0
    assert votes["majority"]["4"]["mean"] == 0.5
    del rows[0]["components"]
    assert "best by judge" not in evaluate_samples(rows, ["a"], 4)["checkpoints"]["a"]["votes"]


def test_a_judge_chooses_among_episodes_without_an_answer_in_their_text_too():
    rows = list(samples("a", [[1, 0, 0, 1]]))
    for row, score in zip(rows, (0.9, 0.2, 0.4, 0.1), strict=True):
        row["components"] = {"judge": score}
    votes = evaluate_samples(rows, ["a"], 4)["checkpoints"]["a"]["votes"]
    assert {rule: list(by_k) for rule, by_k in votes.items()} == {"best by judge": ["2", "4"]}
    assert votes["best by judge"]["2"]["mean"] == pytest.approx(3 / 6)


def test_there_are_no_votes_where_no_answer_was_taken_from_the_texts():
    rows = list(samples("a", [[1, 1], [1, 0]]))
    assert evaluate_samples(rows, ["a"], 2)["checkpoints"]["a"]["votes"] == {}
