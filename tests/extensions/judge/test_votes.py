"""Several replies become one, number by number."""

import pytest

from asyncrl.extensions.judge.questions import Scores
from asyncrl.extensions.judge.votes import voted

REPLIES = [
    Scores({"a": a, "b": b}, {0: t}) for a, b, t in [(0.0, 0.1, 0.5), (0.0, 0.9, 1.0), (0.9, 0.9, 0.6)]
]


@pytest.mark.parametrize(
    ("vote", "numbers", "turn"),
    [
        ("mean", {"a": 0.3, "b": 1.9 / 3}, 0.7),
        ("median", {"a": 0.0, "b": 0.9}, 0.6),
        ("majority", {"a": 0.0, "b": 0.9}, 0.7),
    ],
)
def test_each_number_is_voted_on_by_itself(vote, numbers, turn):
    found = voted(vote, REPLIES)
    assert found.numbers == pytest.approx(numbers)
    assert found.turns == pytest.approx({0: turn})


def test_equally_frequent_numbers_are_averaged_whatever_their_order():
    replies = [Scores({"a": one}) for one in (1.0, 0.0, 1.0, 0.0, 0.6)]
    assert voted("majority", replies).numbers == {"a": 0.5}


def test_an_even_number_of_replies_has_the_mean_of_the_two_in_the_middle():
    assert voted("median", [Scores({"a": one}) for one in (0.0, 0.2, 0.4, 1.0)]).numbers == pytest.approx(
        {"a": 0.3}
    )


@pytest.mark.parametrize("vote", ["mean", "median", "majority"])
def test_one_reply_is_its_own_vote(vote):
    assert voted(vote, REPLIES[:1]) == REPLIES[0]
