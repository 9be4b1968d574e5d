"""Groups that make the loss or gradient of an optimizer step NaN or infinite: found one by one, and left out."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.algo.metrics import Metrics
from asyncrl.train.step.gradient import Step, accumulate, discard


def accumulate_finite(step: Step, rows: Sequence[int]) -> tuple[list[Metrics], Sequence[int], dict[int, str]]:
    """Accumulate the gradients of `rows` less the groups that are not finite; return metrics, the rows that remain, and
    what is wrong with the other groups. A collective.

    To find these, each group is tried alone, without an optimizer step.
    """
    found, why = accumulate(step, rows)
    if not why:
        return found, rows, {}
    discard(step)
    wrong = _search(step, rows) or {int(step.batch.group[row]): why for row in rows}
    step.leave_out(wrong)
    rows = [row for row in rows if int(step.batch.group[row]) not in wrong]
    found, why = accumulate(step, rows) if rows else ([], "")
    if not why:
        return found, rows, wrong
    # Each group alone is finite, all together are not.
    discard(step)
    others = {int(step.batch.group[row]): why for row in rows}
    step.leave_out(others)
    return [], [], wrong | others


def _search(step: Step, rows: Sequence[int]) -> dict[int, str]:
    """Return the groups whose own loss or gradient is not finite, with what is wrong. A collective."""
    found = {}
    for group in sorted({int(step.batch.group[row]) for row in rows}):
        _, why = accumulate(step, [row for row in rows if int(step.batch.group[row]) == group])
        discard(step)
        if why:
            found[group] = why
    return found
