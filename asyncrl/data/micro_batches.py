"""Cutting a batch into micro-batches of bounded size, the same number on every rank."""

from __future__ import annotations

from collections.abc import Sequence


def plan_micro_batches(lengths: Sequence[int], budget: int, ranks: int = 1) -> list[list[list[int]]]:
    """Assign rows to `[rank][micro-batch]` lists of row indices.

    Rows are sorted by length, dealt to the ranks in turn (longest first, back and forth, so ranks carry
    nearly equal tokens), and cut where rows times the longest of them would pass `budget` padded tokens. A row
    longer than the budget gets a micro-batch of its own. Every rank gets the same number of micro-batches, since
    a forward pass may be a collective; a rank with fewer rows gets empty lists.

    `lengths`: [B] tokens. Deterministic. Every row appears exactly once.
    """
    if budget < 1 or ranks < 1:
        raise ValueError(f"budget and ranks must be at least 1, got {budget} and {ranks}")
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for position, row in enumerate(order):
        lap, place = divmod(position, ranks)
        dealt[place if lap % 2 == 0 else ranks - 1 - place].append(row)
    plans = [_cut(rows, lengths, budget) for rows in dealt]
    most = max(len(plan) for plan in plans)
    for plan in plans:
        _split_until(plan, most)
    return plans


def _cut(rows: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut rows, longest first, into micro-batches; the first row of each sets its width."""
    plan: list[list[int]] = []
    for row in rows:
        if plan and (len(plan[-1]) + 1) * lengths[plan[-1][0]] <= budget:
            plan[-1].append(row)
        else:
            plan.append([row])
    return plan


def _split_until(plan: list[list[int]], count: int) -> None:
    while len(plan) < count:
        widest = max(range(len(plan)), key=lambda i: len(plan[i]), default=-1)
        if widest < 0 or len(plan[widest]) < 2:
            plan.append([])
            continue
        rows = plan[widest]
        plan[widest : widest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
