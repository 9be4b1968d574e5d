"""Results of an evaluation from its samples: rates with intervals, breakdowns, comparisons, regressions. Pure.

Samples that the environment or the infrastructure failed are counted apart and enter no rate. The score of a sample is
its success where its part judges episodes, else its reward.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asyncrl.evaluation.statistics import clustered_mean, pass_at_k, pass_hat_k
from asyncrl.extensions.benchmarks.comparison import compare, holm
from asyncrl.extensions.benchmarks.token_curve import success_by_tokens, token_limits
from asyncrl.extensions.benchmarks.votes import (
    best_at_k,
    majority_at_k,
    shortest_majority_at_k,
    weighted_majority_at_k,
)
from asyncrl.rewards.final_answers import final_answers
from asyncrl.types import FailureClass

Row = Mapping[str, Any]
WORST = 10
"""Samples of each checkpoint that the report shows whole."""
JUDGE = "judge"
"""The component of a sample's reward that a judge gave."""
MAX_VOTES = 64
"""Samples that vote at most."""
REGRESSIONS = 50
"""Tasks that the report lists for each comparison."""


def evaluate_samples(rows: Sequence[Row], checkpoints: Sequence[str], samples: int) -> dict[str, Any]:
    """Return everything that `results.json` says about the samples of these checkpoints.

    samples: episodes of a task, the largest k of pass@k. The first checkpoint is what others are compared with.
    """
    judged = {row["part"] for row in rows if row["success"] is not None}
    grouped = _grouped(rows, lambda row: [row["checkpoint"]])
    by_checkpoint = {name: grouped[name] for name in checkpoints if name in grouped}
    found = {name: _checkpoint(mine, judged, samples) for name, mine in by_checkpoint.items()}
    verdicts = {
        name: [row for row in mine if counts(row) and row["part"] in judged]
        for name, mine in by_checkpoint.items()
    }
    limits = token_limits([row for mine in verdicts.values() for row in mine])
    for name, mine in verdicts.items():
        found[name]["by_tokens"] = success_by_tokens(mine, limits)
    return {"checkpoints": found, "comparisons": _comparisons(by_checkpoint, judged)}


def without(rows: Sequence[Row], tasks: Collection[str]) -> dict[str, Any]:
    """Return the score of each checkpoint without some tasks, which are named as their samples name them.

    A checkpoint of which no other sample counts is left out.
    """
    judged = {row["part"] for row in rows if row["success"] is not None}
    kept = [row for row in rows if counts(row) and row["task"] not in tasks]
    return {
        name: asdict(clustered_mean(_by_task(mine, lambda row: score(row, judged))))
        for name, mine in _grouped(kept, lambda row: [row["checkpoint"]]).items()
    }


def score(row: Row, judged: set[str]) -> float:
    """Return a sample's score: success where its part judges, else reward."""
    return float(bool(row["success"])) if row["part"] in judged else float(row["reward"])


def counts(row: Row) -> bool:
    """True for a sample that says something about the policy."""
    return row["failure"] in (None, FailureClass.AGENT)


def _checkpoint(rows: Sequence[Row], judged: set[str], samples: int) -> dict[str, Any]:
    def breakdown(keys: Callable[[Row], Iterable[str]]) -> dict[str, Any]:
        grouped = sorted(_grouped(rows, keys).items())
        return {key: _summary(mine, judged, samples) for key, mine in grouped}

    lost = [row for row in rows if counts(row) and not row["success"]]
    worst = sorted(lost, key=lambda row: (score(row, judged), row["reward"]))
    return {
        **_summary(rows, judged, samples),
        "votes": _votes([row for row in rows if counts(row) and row["part"] in judged], samples),
        "parts": breakdown(lambda row: [row["part"]]),
        "tags": breakdown(lambda row: row["tags"]),
        "difficulty": breakdown(lambda row: [] if row["difficulty"] is None else [row["difficulty"]]),
        "failures": [
            {"failure": kind, "part": part, "error": error, "samples": number}
            for (kind, part, error), number in Counter(
                (row["failure"], row["part"], row["error"].splitlines()[0][:200] if row["error"] else "")
                for row in rows
                if row["failure"]
            ).most_common()
        ],
        "worst": [row["id"] for row in worst[:WORST]],
    }


def _summary(rows: Sequence[Row], judged: set[str], samples: int) -> dict[str, Any]:
    """Return rates of some samples: means over tasks, with intervals clustered by task."""
    valid = [row for row in rows if counts(row)]
    failed = Counter(row["failure"] for row in rows if row["failure"])
    found: dict[str, Any] = {
        "samples": len(rows),
        "counted": len(valid),
        "failed": dict(failed),
        "truncated": sum(row["status"] == "truncated" for row in valid),
    }
    if not valid:
        return found | {"score": None, "reward": None, "pass_at": {}, "pass_hat": {}}
    scores = _by_task(valid, lambda row: score(row, judged))
    found |= {
        "score": asdict(clustered_mean(scores)),
        "reward": asdict(clustered_mean(_by_task(valid, lambda row: float(row["reward"])))),
        "turns": _mean(row["turns"] for row in valid),
        "tokens": _mean(row["tokens"] for row in valid),
        "read_tokens": _mean(row["read_tokens"] for row in valid)
        if all("read_tokens" in row for row in valid)
        else None,
        "pass_at": {},
        "pass_hat": {},
    }
    verdicts = list(
        _by_task((row for row in valid if row["part"] in judged), lambda row: score(row, judged)).values()
    )
    k = 1
    while k <= samples:
        # A task that lost samples to the infrastructure cannot tell about so many.
        enough = {str(n): (len(v), int(sum(v))) for n, v in enumerate(verdicts) if len(v) >= k}
        if not enough:
            break
        for name, estimate in (("pass_at", pass_at_k), ("pass_hat", pass_hat_k)):
            # With k = 1 both are the rate itself, whose interval also knows of the spread within tasks.
            estimates = (
                {str(n): values for n, values in enumerate(verdicts)}
                if k == 1
                else {task: [estimate(n, c, k)] for task, (n, c) in enough.items()}
            )
            found[name][str(k)] = asdict(clustered_mean(estimates))
        k *= 2
    return found


def _votes(rows: Sequence[Row], samples: int) -> dict[str, dict[str, Any]]:
    """Return the success of the answer that each rule chooses among k samples, by rule and k; over tasks with k samples
    that count. Rules that compare answers are for tasks of which at least one sample has an answer that was taken from
    its text; what a judge scores may be any episode."""
    tasks = list(_grouped(rows, lambda row: [row["task"]]).values())
    answered = [mine for mine in tasks if any(row.get("extracted") for row in mine)]
    found: dict[str, dict[str, Any]] = {}
    k = 2
    while k <= min(samples, MAX_VOTES):
        for name, rule in (RULES | JUDGE_RULES).items():
            enough = [mine for mine in (tasks if name == BEST else answered) if len(mine) >= k]
            if not enough or (name in JUDGE_RULES and not all(map(_is_scored, enough))):
                continue
            estimates = {str(n): [rule(mine, k)] for n, mine in enumerate(enough)}
            found.setdefault(name, {})[str(k)] = asdict(clustered_mean(estimates))
        k *= 2
    return found


def _answers(rows: Sequence[Row]) -> list[Hashable | None]:
    return [final_answers().ballot(row.get("extracted")) for row in rows]


def _correct(rows: Sequence[Row]) -> list[bool]:
    return [bool(row["success"]) for row in rows]


RULES: dict[str, Callable[[Sequence[Row], int], float]] = {
    "majority": lambda rows, k: majority_at_k(_answers(rows), _correct(rows), k),
    "shortest": lambda rows, k: best_at_k([-row["tokens"] for row in rows], _correct(rows), k),
    "shortest majority": lambda rows, k: shortest_majority_at_k(
        _answers(rows), [row["tokens"] for row in rows], _correct(rows), k
    ),
}
"""How one of k answers is chosen without knowing the right one."""


def _is_scored(rows: Sequence[Row]) -> bool:
    """Return whether a judge has scored all samples of a task."""
    return all(JUDGE in (row.get("components") or {}) for row in rows)


def _judge_scores(rows: Sequence[Row]) -> list[float]:
    return [float(row["components"][JUDGE]) for row in rows]


BEST = "best by judge"
"""The rule that takes what a judge gives the highest score."""
JUDGE_RULES: dict[str, Callable[[Sequence[Row], int], float]] = {
    BEST: lambda rows, k: best_at_k(_judge_scores(rows), _correct(rows), k),
    "majority weighed by judge": lambda rows, k: weighted_majority_at_k(
        _answers(rows), [max(0.0, one) for one in _judge_scores(rows)], _correct(rows), k
    ),
}
"""How one of k answers is chosen by the scores of a judge, where all samples have one."""


def _comparisons(by_checkpoint: Mapping[str, Sequence[Row]], judged: set[str]) -> list[dict[str, Any]]:
    """Compare every further checkpoint with the first, on all tasks and by part.

    Holm's method is over all comparisons on all tasks, and over all those by part.
    """
    names = list(by_checkpoint)
    parts = sorted({row["part"] for rows in by_checkpoint.values() for row in rows})
    whole: list[dict[str, Any]] = []
    single: list[dict[str, Any]] = []
    for name in names[1:]:
        pairs: list[tuple[str | None, list[dict[str, Any]]]] = [(None, whole), *((p, single) for p in parts)]
        for part, family in pairs:
            first, second = (
                _by_task(
                    (row for row in by_checkpoint[one] if counts(row) and part in (None, row["part"])),
                    lambda row: score(row, judged),
                )
                for one in (names[0], name)
            )
            try:
                found = asdict(compare(first, second))
            except ValueError:
                # Fewer than two tasks that both have.
                continue
            regressions = _regressions(first, second) if part is None else []
            family.append(
                {"first": names[0], "second": name, "part": part, **found, "regressions": regressions}
            )
    for family in (whole, single):
        for one, p in zip(family, holm([one["p_value"] for one in family]), strict=True):
            one["p_holm"] = p
    return [*whole, *single]


def _regressions(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return the tasks on which the second checkpoint scores less, those that lost most first."""
    lost = sorted(
        (_mean(second[task]) - _mean(values), task)
        for task, values in first.items()
        if second.get(task) and _mean(second[task]) < _mean(values)
    )
    return [
        {"task": task, "first": _mean(first[task]), "second": _mean(second[task])}
        for _, task in lost[:REGRESSIONS]
    ]


def _grouped(rows: Iterable[Row], keys: Callable[[Row], Iterable[str]]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for key in keys(row):
            found[key].append(row)
    return dict(found)


def _by_task(rows: Iterable[Row], value: Callable[[Row], float]) -> dict[str, list[float]]:
    """Return values by task; its id in a suite names its part, too."""
    return {
        task: [value(row) for row in mine] for task, mine in _grouped(rows, lambda row: [row["task"]]).items()
    }


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
