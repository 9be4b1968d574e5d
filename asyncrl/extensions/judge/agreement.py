"""How far a judge agrees with labels, and what else its scores follow: length, and the order of two answers.

    asyncrl judge agree FILE RECIPE

Rows are JSON lines: `prompt` (a text or messages) and `response`, or `messages`, with a number as `label`; or `prompt`
with `chosen` and `rejected`. Other columns are the task's data, as `{task}` of the prompt.

    agreement   rank correlation of scores and labels (Spearman's, and Kendall's tau-b), with the interval that 95 % of
                1,000 resamples of the rows fall into; where labels are two numbers, also the area under the ROC curve
    length      rank correlation of scores with the length of answers, that of labels, and that of scores where the
                labels' is taken out (a partial correlation of ranks): 0 for a judge that length does not move
    pairs       of two answers to one prompt that differ in their label, each shown in both orders: how often the
                better one is preferred, how often the orders agree, how often the one shown first wins
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from asyncrl.data.transcript import content_text
from asyncrl.errors import InputError, JudgeError
from asyncrl.extensions.judge.check import share
from asyncrl.extensions.judge.client import JudgeClient
from asyncrl.extensions.judge.comparing import Preference, prefer
from asyncrl.extensions.judge.endpoint import judge_errors
from asyncrl.extensions.judge.questions import JudgeRequest
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.textfile import json_records
from asyncrl.types import Message, Task

RESAMPLES = 1000
COLUMNS = ("prompt", "response", "messages", "label", "chosen", "rejected")


@dataclass(frozen=True, slots=True)
class Labelled:
    """An answer with its label."""

    request: JudgeRequest
    label: float
    prompt: str
    """Equal for answers to one prompt."""

    @property
    def length(self) -> int:
        """Characters of the policy's messages."""
        said = [m for m in self.request.messages[1:] if m["role"] == "assistant"]
        return sum(len(content_text(m.get("content"))) for m in said)


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a judge says of pairs, of which the first is the better one."""

    count: int
    better: float
    """How often the better one is preferred, over both orders; a tie counts half."""
    consistent: float
    """Share of pairs on which both orders agree."""
    first: float
    """How often the one shown first is preferred; 0.5 for a judge that the order does not move."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What is reported. Correlations are NaN where scores or labels are all equal."""

    rows: int
    failed: int
    first_error: str
    spearman: float
    interval: tuple[float, float]
    kendall: float
    auc: float | None
    """The area under the ROC curve; None unless labels are two numbers."""
    length: float
    label_length: float
    partial_length: float
    pairs: Pairs | None
    scores: list[float] = field(repr=False, default_factory=list)


def read_rows(path: Path) -> list[Labelled]:
    """Return a file's answers, two for each row with a chosen and a rejected one.

    Raises `InputError` naming line and column, and `ConfigError` for a file that cannot be read.
    """
    found: list[Labelled] = []
    for number, row in json_records(path):
        try:
            found += _answers(row)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}, line {number}: {_problem(error)}") from None
    if len(found) < 2:
        raise InputError(f"{path}: has {len(found)} answers; agreement needs two at least")
    return found


def _problem(error: Exception) -> str:
    if isinstance(error, KeyError):
        return (
            f"has no column {error.args[0]!r}; a row has prompt, response and label, or messages and label, or "
            "prompt, chosen and rejected"
        )
    return str(error)


def _answers(row: dict[str, Any]) -> Iterator[Labelled]:
    data = {key: value for key, value in row.items() if key not in COLUMNS}
    if "chosen" in row or "rejected" in row:
        opening = _opening(row["prompt"])
        yield _labelled([*opening, *_said(row["chosen"])], len(opening), 1.0, data)
        yield _labelled([*opening, *_said(row["rejected"])], len(opening), 0.0, data)
        return
    label = row["label"]
    if not isinstance(label, int | float) or not math.isfinite(label):
        raise ValueError(f"label must be a number, got {label!r:.100}")
    if "messages" in row:
        messages = _opening(row["messages"])
        last = max((n for n, m in enumerate(messages) if m["role"] != "assistant"), default=-1)
        yield _labelled(messages, last + 1, float(label), data)
    else:
        opening = _opening(row["prompt"])
        yield _labelled([*opening, *_said(row["response"])], len(opening), float(label), data)


def _opening(given: Any) -> list[Message]:
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise ValueError(f"prompt and messages must be a text or messages with roles, got {given!r:.100}")
    return messages


def _said(given: Any) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "assistant", "content": given}]
    # Preference data often repeats the prompt: the answer is what the assistant says last.
    return [m for m in _opening(given) if m["role"] == "assistant"][-1:]


def _labelled(messages: list[Message], opening: int, label: float, data: dict[str, Any]) -> Labelled:
    prompt = json.dumps([messages[:opening], data], sort_keys=True, default=str)
    turns = {
        place: turn
        for turn, place in enumerate(
            n for n, m in enumerate(messages) if n >= opening and m["role"] == "assistant"
        )
    }
    task = Task("judge-agree", "judge-agree", data=data)
    return Labelled(JudgeRequest(task, tuple(messages), 0.0, turns), label, prompt)


async def agree(
    config: JudgeConfig, judge: JudgeClient, rows: Sequence[Labelled], most_pairs: int
) -> Agreement:
    """Have the judge score all rows, and compare `most_pairs` pairs at most; 0 for none.

    Raises `JudgeError` where fewer than two rows could be judged.
    """
    found = await asyncio.gather(*(judge.score(one.request) for one in rows), return_exceptions=True)
    errors = judge_errors(found)
    judged = [
        (one, share(config, s))
        for one, s in zip(rows, found, strict=True)
        if not isinstance(s, BaseException)
    ]
    if len(judged) < 2:
        raise JudgeError(f"{len(judged)} of {len(rows)} rows could be judged: {errors[0]}")
    scores = np.array([score for _, score in judged])
    labels = np.array([one.label for one, _ in judged])
    lengths = np.array([one.length for one, _ in judged], float)
    pairs = _pairs(rows)[:most_pairs] if config.chats else []
    return Agreement(
        rows=len(rows),
        failed=len(errors),
        first_error=str(errors[0]) if errors else "",
        spearman=rank_correlation(scores, labels),
        interval=interval(scores, labels),
        kendall=float(stats.kendalltau(scores, labels).statistic),
        auc=roc_area(scores, labels),
        length=rank_correlation(scores, lengths),
        label_length=rank_correlation(labels, lengths),
        partial_length=partial(scores, lengths, labels),
        pairs=await _compared(config, judge, pairs) if pairs else None,
        scores=scores.tolist(),
    )


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's correlation of two rows of numbers, ties at the mean of their ranks; NaN for a constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])


def partial(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """Return the rank correlation of x and y without what both share with `given`: r_xy.z of their ranks."""
    xy, xz, yz = rank_correlation(x, y), rank_correlation(x, given), rank_correlation(y, given)
    left = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / math.sqrt(left) if left > 1e-12 else math.nan


def roc_area(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Return how likely a row of the higher label scores above one of the lower, ties half; None unless there are two
    labels."""
    if len(values := np.unique(labels)) != 2:
        return None
    high, low = scores[labels == values[1]], scores[labels == values[0]]
    above = (high[:, None] > low[None]).mean() + 0.5 * (high[:, None] == low[None]).mean()
    return float(above)


def interval(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the interval that the middle 95 % of the correlations of resampled rows fall into."""
    rng = np.random.default_rng(0)
    count = len(scores)
    chosen = (rng.integers(0, count, count) for _ in range(RESAMPLES))
    found = [one for rows in chosen if not math.isnan(one := rank_correlation(scores[rows], labels[rows]))]
    if not found:
        return math.nan, math.nan
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def _pairs(rows: Sequence[Labelled]) -> list[tuple[Labelled, Labelled]]:
    """Return two answers to one prompt that differ in their label, the better one first."""
    by_prompt: dict[str, list[Labelled]] = {}
    for one in rows:
        by_prompt.setdefault(one.prompt, []).append(one)
    found = (pair for answers in by_prompt.values() for pair in combinations(answers, 2))
    return [(a, b) if a.label > b.label else (b, a) for a, b in found if a.label != b.label]


async def _compared(
    config: JudgeConfig, judge: JudgeClient, pairs: Sequence[tuple[Labelled, Labelled]]
) -> Pairs | None:
    asked = (prefer(judge.endpoint, config, better.request, worse.request) for better, worse in pairs)
    found = await asyncio.gather(*asked, return_exceptions=True)
    judge_errors(found)
    said = [one for one in found if isinstance(one, Preference)]
    if not said:
        return None
    return Pairs(
        len(said),
        better=float(np.mean([one.mean for one in said])),
        consistent=float(np.mean([one.consistent for one in said])),
        first=float(np.mean([(one.shown_first + 1.0 - one.shown_second) / 2 for one in said])),
    )
