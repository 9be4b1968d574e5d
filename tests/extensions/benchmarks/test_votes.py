"""Votes among samples: hand-computed cases, and equal to going through every draw and every order of ties."""

import itertools
import math
import random
from collections import Counter

import pytest

from asyncrl.extensions.benchmarks.votes import (
    best_at_k,
    majority_at_k,
    shortest_majority_at_k,
    weighted_majority_at_k,
)


def table(rng):
    n = rng.randint(1, 8)
    answers = [rng.choice(["a", "b", "c", "d", None]) for _ in range(n)]
    right = {name: rng.random() < 0.4 for name in "abcd"}
    correct = [answer is not None and right[answer] for answer in answers]
    return answers, correct, [rng.randint(1, 4) for _ in range(n)], rng.randint(1, n)


def over_all_draws(n, k, winners):
    """The mean over draws of the share of winners that are right."""
    values = []
    for drawn in itertools.combinations(range(n), k):
        won = winners(drawn)
        values.append(sum(won) / len(won) if won else 0.0)
    return sum(values) / len(values)


def test_the_majority_of_three_by_hand():
    # Of a, a, b the majority is a in all draws of three; in the draws of two, {a, a} is a, the two {a, b} are ties.
    assert majority_at_k(["a", "a", "b"], [True, True, False], 3) == 1.0
    assert majority_at_k(["a", "a", "b"], [True, True, False], 2) == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert majority_at_k(["a", "a", "b"], [True, True, False], 1) == pytest.approx(2 / 3)


def test_a_wrong_majority_loses_although_one_sample_is_right():
    assert majority_at_k(["a", "a", "b"], [False, False, True], 3) == 0.0


def test_votes_weighed_by_a_judge_by_hand():
    # Of a (0.2), a (0.3), b (0.6) the sums are 0.5 and 0.6; the draws of two have a, then b twice.
    weights = [0.2, 0.3, 0.6]
    assert weighted_majority_at_k(["a", "a", "b"], weights, [True, True, False], 3) == 0.0
    assert weighted_majority_at_k(["a", "a", "b"], weights, [True, True, False], 2) == pytest.approx(1 / 3)


def test_samples_without_an_answer_do_not_vote():
    assert majority_at_k([None, None, "b"], [False, False, True], 3) == 1.0
    assert majority_at_k([None, None], [False, False], 2) == 0.0


def test_the_shortest_of_two_by_hand():
    # Lengths 1 (right), 2 (wrong), 3 (right): the draws {1,2}, {1,3}, {2,3} have the shortest right, right, wrong.
    assert best_at_k([-1, -2, -3], [True, False, True], 2) == pytest.approx(2 / 3)


@pytest.mark.parametrize("tenth", range(10))
def test_the_estimates_of_a_thousand_tables_are_those_over_every_draw(tenth):
    for seed in range(100 * tenth, 100 * tenth + 100):
        compare_with_every_draw(*table(random.Random(seed)))


def compare_with_every_draw(answers, correct, tokens, k):
    n = len(answers)

    def majority(drawn):
        votes = Counter(answers[i] for i in drawn if answers[i] is not None)
        most = max(votes.values(), default=0)
        return [correct[answers.index(a)] for a, count in votes.items() if count == most]

    def shortest(drawn):
        least = min(tokens[i] for i in drawn)
        return [correct[i] for i in drawn if tokens[i] == least]

    def short_majority(drawn):
        votes = Counter(answers[i] for i in drawn if answers[i] is not None)
        mean = {a: sum(tokens[i] for i in drawn if answers[i] == a) / c for a, c in votes.items()}
        weights = {a: c / math.log(2 + mean[a]) for a, c in votes.items()}
        most = max(weights.values(), default=0)
        return [correct[answers.index(a)] for a, w in weights.items() if math.isclose(w, most)]

    def weighted(drawn):
        sums = Counter()
        for i in drawn:
            if answers[i] is not None:
                sums[answers[i]] += tokens[i]
        most = max(sums.values(), default=0)
        return [correct[answers.index(a)] for a, total in sums.items() if total == most]

    assert weighted_majority_at_k(answers, tokens, correct, k) == pytest.approx(
        over_all_draws(n, k, weighted)
    )
    assert majority_at_k(answers, correct, k) == pytest.approx(over_all_draws(n, k, majority))
    assert best_at_k([-length for length in tokens], correct, k) == pytest.approx(
        over_all_draws(n, k, shortest)
    )
    assert shortest_majority_at_k(answers, tokens, correct, k) == pytest.approx(
        over_all_draws(n, k, short_majority)
    )


def test_many_samples_take_no_enumeration():
    answers = ["a"] * 40 + [f"other{i % 12}" for i in range(24)]
    correct = [answer == "a" for answer in answers]
    assert majority_at_k(answers, correct, 1) == pytest.approx(40 / 64)
    assert majority_at_k(answers, correct, 64) == 1.0
    assert 0.95 < majority_at_k(answers, correct, 8) < 1.0


@pytest.mark.parametrize("estimate", [majority_at_k, best_at_k])
def test_more_samples_than_there_are_is_refused(estimate):
    with pytest.raises(ValueError, match="from 1 to the number of samples, 2, got 3"):
        estimate([1, 2], [True, False], 3)
