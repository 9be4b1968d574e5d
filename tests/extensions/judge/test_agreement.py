"""`asyncrl judge agree`: what is reported of scores and labels, on tables whose numbers are known."""

import gzip
import json
import math
import re

import numpy as np
import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.judge.agreement import interval, partial, rank_correlation, read_rows, roc_area
from tests.extensions.judge.server import Endpoint, chat, serving

ROWS = [
    {"prompt": "q1", "response": "good long answer", "label": 1, "note": "x"},
    {"prompt": "q1", "response": "bad", "label": 0, "note": "x"},
    {"prompt": "q2", "response": "good", "label": 1},
    {"prompt": "q2", "response": "bad and rather long", "label": 0},
]


def written(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_ties_have_the_mean_of_their_ranks():
    x, y = np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5 over the root of 4.5 x 5.
    assert rank_correlation(x, y) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(rank_correlation(x, np.ones(4)))


def test_what_two_share_with_a_third_is_taken_out():
    rng = np.random.default_rng(3)
    labels = rng.normal(size=2000)
    scores, lengths = labels + rng.normal(size=2000), labels + rng.normal(size=2000)
    assert rank_correlation(scores, lengths) > 0.4
    assert abs(partial(scores, lengths, labels)) < 0.06
    assert partial(scores + lengths, lengths, labels) > 0.5


def test_the_area_under_the_curve_is_the_share_of_right_orders():
    scores, labels = np.array([0.1, 0.5, 0.5, 0.9]), np.array([0.0, 0.0, 1.0, 1.0])
    assert roc_area(scores, labels) == (3 + 0.5) / 4
    assert roc_area(scores, np.array([0.0, 1.0, 2.0, 2.0])) is None


def test_the_interval_holds_the_correlation_and_narrows():
    rng = np.random.default_rng(1)
    labels = rng.normal(size=400)
    scores = labels + rng.normal(size=400)
    low, high = interval(scores, labels)
    assert low < rank_correlation(scores, labels) < high
    few = interval(scores[:40], labels[:40])
    assert few[1] - few[0] > high - low


def test_rows_are_answers_with_their_prompt_and_the_tasks_data(tmp_path):
    preference = {
        "prompt": "q",
        "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "rejected": "b",
        "answer": 4,
    }
    told = {"messages": [*preference["chosen"]], "label": 0.5}
    better, worse, alone = read_rows(written(tmp_path / "f.jsonl", [preference, told]))
    assert [m["content"] for m in better.request.messages] == ["q", "a"]
    assert [m["content"] for m in worse.request.messages] == ["q", "b"]
    assert (better.label, worse.label, alone.label) == (1.0, 0.0, 0.5)
    assert better.prompt == worse.prompt != alone.prompt
    assert better.request.task.data == {"answer": 4}
    assert alone.request.turns == {1: 0}
    assert (better.length, alone.length) == (1, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1: no JSON: one value goes over several lines"),
        ('{"prompt": "q"', "line 1: no JSON"),
        ("[1]", "line 1: must be an object"),
        ('{"prompt": "q", "response": "r"}', "line 1: has no column 'label'"),
        ('{"prompt": "q", "response": "r", "label": "good"}', "line 1: label must be a number, got 'good'"),
        ('{"prompt": "q", "response": "r", "label": NaN}', "line 1: label must be a number, got nan"),
        (
            '{"prompt": 3, "response": "r", "label": 1}',
            "line 1: prompt and messages must be a text or messages",
        ),
        ('{"prompt": "q", "response": "r", "label": 1}', "has 1 answers; agreement needs two"),
    ],
)
def test_a_row_that_is_none_is_refused_by_its_line(tmp_path, text, why):
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(why)):
        read_rows(path)


def test_a_file_is_read_as_all_files_of_json_lines_are(tmp_path):
    rows = [{"prompt": "one\u2028two\u0085", "response": "a", "label": 1, "note": None}, ROWS[1]]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\r\n"
    file = tmp_path / "f.jsonl.gz"
    file.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    first, second = read_rows(file)
    assert first.request.messages[0]["content"] == "one\u2028two\u0085"
    assert (first.request.task.data, second.request.task.data) == ({}, {"note": "x"})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_rows(tmp_path / "none.jsonl")


def liking(prompt):
    """Scores by the word, and prefers whatever is shown first unless only the second is good."""
    if "=== Conversation A" in prompt:
        first, second = prompt.split("=== Conversation B")
        return "B" if "] good" in second and "long" not in second and "rather" not in first else "A"
    return "9" if "] good" in prompt else "3"


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\npath = "m"\n[env]\nname = "gridworld"\n')
    return str(path)


def report(recipe, rows, judge, capsys, *more):
    with serving(Endpoint(chat(judge))) as url:
        assert main(["judge", "agree", str(rows), recipe, f"judge.url={url}", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_reports_agreement_and_what_else_moves_the_judge(tmp_path, recipe, capsys):
    found = report(recipe, written(tmp_path / "f.jsonl", ROWS), liking, capsys)
    assert found["scores"] == [0.9, 0.3, 0.9, 0.3]
    assert (found["spearman"], found["kendall"], found["auc"]) == (
        pytest.approx(1.0),
        pytest.approx(1.0),
        1.0,
    )
    # Lengths 16, 3, 4, 19 have ranks 3, 1, 2, 4; the good ones 3 and 2, the bad ones 1 and 4.
    assert found["length"] == found["label_length"] == pytest.approx(0.0)
    # Both pairs: A in both orders, so half for each, no order agrees, and the first one always wins.
    assert found["pairs"] == {"count": 2, "better": 0.5, "consistent": 0.0, "first": 1.0}


def test_a_judge_that_order_does_not_move_prefers_the_first_half_the_time(tmp_path, recipe, capsys):
    def fair(prompt):
        if "=== Conversation A" not in prompt:
            return "5"
        return "A" if "] good" in prompt.split("=== Conversation B")[0] else "B"

    found = report(recipe, written(tmp_path / "f.jsonl", ROWS), fair, capsys)
    assert found["pairs"] == {"count": 2, "better": 1.0, "consistent": 1.0, "first": 0.5}
    assert math.isnan(found["spearman"]), "all scores are equal"


def test_rows_that_cannot_be_judged_are_counted(tmp_path, recipe, capsys):
    def choosy(prompt):
        return "no" if "rather" in prompt else liking(prompt)

    found = report(recipe, written(tmp_path / "f.jsonl", ROWS), choosy, capsys, "--pairs", "0")
    assert (found["rows"], found["failed"], found["pairs"]) == (4, 1, None)
    assert "last line must be a number" in found["first_error"]


def test_the_report_for_people_has_every_number(tmp_path, recipe, capsys):
    with serving(Endpoint(chat(liking))) as url:
        rows = str(written(tmp_path / "f.jsonl", ROWS))
        assert main(["judge", "agree", rows, recipe, f"judge.url={url}"]) == 0
    out = capsys.readouterr().out
    assert "rows            4, of which 0 could not be judged" in out
    assert "Spearman +1.000" in out
    assert "area under the ROC curve 1.000" in out
    assert (
        "pairs           2: the better one preferred 50.0%, both orders agree 0.0%, the one shown first"
        in out
    )
