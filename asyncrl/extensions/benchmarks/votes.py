"""What becomes of k samples of a task when one answer is chosen among them, without knowing the right one. Pure.

Each function takes the n samples that a task has and returns the expectation over all C(n, k) ways to draw k of them
without replacement, and over ties, which are broken at random: an unbiased estimate for k independent samples, like
`pass_at_k`. A task's samples are given as equally long sequences; `correct` [n] says which are right.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

MAX_SUBSETS = 20_000
"""Draws of k samples that are gone through one by one; of more, a tenth of as many are drawn."""

Answer = Hashable


def majority_at_k(answers: Sequence[Answer | None], correct: Sequence[bool], k: int) -> float:
    """Return how often the most frequent answer of k is right (self-consistency, Wang et al. 2022).

    answers: [n], None for a sample without one, which does not vote. Samples of one answer that are judged differently
    count as right in their share. Raises `ValueError` for n < k.
    """
    _enough(answers, k)
    votes = Counter(answer for answer in answers if answer is not None)
    silent = len(answers) - votes.total()
    right = _shares(answers, correct)
    sizes = Counter(votes.values())
    total = 0.0
    for size in sizes:
        others = sizes - Counter((size,))
        share = sum(right[answer] for answer, count in votes.items() if count == size)
        wins = sum(
            math.comb(size, won) * ways / (1 + ties)
            for won in range(1, min(size, k) + 1)
            for ties, ways in _ways_below(others, silent, won, k - won).items()
        )
        total += share * wins
    return total / math.comb(len(answers), k)


def _ways_below(others: Counter[int], silent: int, won: int, drawn: int) -> dict[int, int]:
    """Return in how many ways `drawn` of the other samples give no answer more than `won` votes, by the number of
    answers that have as many.

    others: how many answers have so many samples.
    """
    ways: dict[tuple[int, int], int] = {(taken, 0): math.comb(silent, taken) for taken in range(drawn + 1)}
    for size in others.elements():
        grown: dict[tuple[int, int], int] = defaultdict(int)
        for (taken, ties), number in ways.items():
            for more in range(min(size, won, drawn - taken) + 1):
                grown[taken + more, ties + (more == won)] += number * math.comb(size, more)
        ways = grown
    found: dict[int, int] = defaultdict(int)
    for (taken, ties), number in ways.items():
        if taken == drawn:
            found[ties] += number
    return found


def best_at_k(scores: Sequence[float], correct: Sequence[bool], k: int) -> float:
    """Return how often the sample with the highest score of k is right: best-of-n by a judge or reward model.

    scores: [n]. With minus the length it is first finish search (Agarwal et al. 2025), the shortest of k. Raises
    `ValueError` for n < k.
    """
    _enough(scores, k)
    n = len(scores)
    right: dict[float, list[bool]] = defaultdict(list)
    for score, one in zip(scores, correct, strict=True):
        right[score].append(one)
    total, below = 0.0, 0
    for score in sorted(right):
        verdicts = right[score]
        best = math.comb(below + len(verdicts), k) - math.comb(below, k)
        total += best * sum(verdicts) / len(verdicts)
        below += len(verdicts)
    return total / math.comb(n, k)


def shortest_majority_at_k(
    answers: Sequence[Answer | None], tokens: Sequence[int], correct: Sequence[bool], k: int
) -> float:
    """Return how often the answer with the most votes per logarithm of its mean length is right (Zeng et al. 2025).

    answers: [n] as in `majority_at_k`. tokens: [n], lengths of the samples; the logarithm is of two more. Where there
    are more than `MAX_SUBSETS` draws, a tenth of as many are drawn by a fixed seed: still unbiased, no longer exact.
    Raises `ValueError` for n < k.
    """
    _enough(answers, k)
    right = _shares(answers, correct)

    def chosen(drawn: Sequence[int]) -> float:
        lengths: dict[Answer, list[int]] = defaultdict(list)
        for index in drawn:
            if (answer := answers[index]) is not None:
                lengths[answer].append(tokens[index])
        if not lengths:
            return 0.0
        weights = {a: len(own) / math.log(2 + sum(own) / len(own)) for a, own in lengths.items()}
        most = max(weights.values())
        first = [right[answer] for answer, weight in weights.items() if math.isclose(weight, most)]
        return sum(first) / len(first)

    return _over_draws(len(answers), k, chosen)


def weighted_majority_at_k(
    answers: Sequence[Answer | None], weights: Sequence[float], correct: Sequence[bool], k: int
) -> float:
    """Return how often the answer with the largest sum of weights among k is right: votes weighed by a judge.

    answers: [n] as in `majority_at_k`. weights: [n], at least 0. Draws as in `shortest_majority_at_k`. Raises
    `ValueError` for n < k.
    """
    _enough(answers, k)
    right = _shares(answers, correct)

    def chosen(drawn: Sequence[int]) -> float:
        sums: dict[Answer, float] = defaultdict(float)
        for index in drawn:
            if (answer := answers[index]) is not None:
                sums[answer] += weights[index]
        if not sums:
            return 0.0
        most = max(sums.values())
        first = [right[answer] for answer, total in sums.items() if math.isclose(total, most, abs_tol=1e-12)]
        return sum(first) / len(first)

    return _over_draws(len(answers), k, chosen)


def _over_draws(n: int, k: int, chosen: Callable[[Sequence[int]], float]) -> float:
    if math.comb(n, k) <= MAX_SUBSETS:
        values = [chosen(drawn) for drawn in itertools.combinations(range(n), k)]
    else:
        rng = random.Random(0)
        values = [chosen(rng.sample(range(n), k)) for _ in range(MAX_SUBSETS // 10)]
    return math.fsum(values) / len(values)


def _shares(answers: Sequence[Answer | None], correct: Sequence[bool]) -> dict[Answer, float]:
    """Return the share of an answer's samples that are right."""
    verdicts: dict[Answer, list[bool]] = defaultdict(list)
    for answer, one in zip(answers, correct, strict=True):
        if answer is not None:
            verdicts[answer].append(one)
    return {answer: sum(own) / len(own) for answer, own in verdicts.items()}


def _enough(samples: Sequence[object], k: int) -> None:
    if not 1 <= k <= len(samples):
        raise ValueError(f"k must be from 1 to the number of samples, {len(samples)}, got {k}")
