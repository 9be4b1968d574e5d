"""Several replies of a judge become one: each number by itself, over the replies that gave it.

mean       the mean
median     the median; the mean of the two in the middle of an even number
majority   the most frequent number; the mean of those that are equally frequent
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from asyncrl.extensions.judge.questions import Scores


def majority(numbers: Sequence[float]) -> float:
    """Return the most frequent number; the mean of those that are equally frequent."""
    # Numbers of one text are equal; scales bring them to sums that differ in the last place at most.
    counts = Counter(round(one, 9) for one in numbers)
    most = max(counts.values())
    return statistics.fmean(number for number, count in counts.items() if count == most)


VOTES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "majority": majority,
}


def voted(vote: str, replies: Sequence[Scores]) -> Scores:
    """Return one reply's worth of scores from several, all of which were asked the same."""
    if len(replies) == 1:
        return replies[0]
    choose = VOTES[vote]
    return Scores(
        {name: choose([one.numbers[name] for one in replies]) for name in replies[0].numbers},
        {turn: choose([one.turns[turn] for one in replies]) for turn in replies[0].turns},
    )
