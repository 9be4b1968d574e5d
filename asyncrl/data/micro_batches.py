"""Cutting a batch into micro-batches of bounded size, the same number on every rank."""

from __future__ import annotations

from collections.abc import Sequence


def plan_micro_batches(
    lengths: Sequence[int],
    budget: int,
    ranks: int = 1,
    units: Sequence[int] | None = None,
    prefix_groups: Sequence[int] | None = None,
) -> list[list[list[int]]]:
    """Assign rows to `[rank][micro-batch]` lists of row indices.

    Rows are sorted by length, dealt to the ranks in turn (longest first, back and forth, so that ranks get nearly
    equal numbers of tokens), and cut where the number of rows times the longest of them would exceed `budget` padded
    tokens. A row longer than the budget gets its own micro-batch. Every rank gets the same number of
    micro-batches, since a forward pass may be a collective; a rank with fewer rows gets empty lists.

    `lengths`: [B] tokens. Deterministic. Every row appears exactly once. With `prefix_groups` [B], rows of equal
    value (a group, whose rows share a prefix) are adjacent, groups with the longest row first. With `units` [B], rows
    of equal unit (a group, for pairwise losses) stay in one micro-batch, even past the budget.
    """
    if budget < 1 or ranks < 1:
        raise ValueError(f"budget and ranks must be at least 1, got {budget} and {ranks}")
    if units is not None:
        return _plan_units(lengths, budget, ranks, units)
    longest: dict[int, int] = {}
    prefix = prefix_groups if prefix_groups is not None else [0] * len(lengths)
    for row, length in enumerate(lengths):
        longest[prefix[row]] = max(length, longest.get(prefix[row], 0))
    order = sorted(
        range(len(lengths)), key=lambda row: (-longest[prefix[row]], prefix[row], -lengths[row], row)
    )
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for position, row in enumerate(order):
        lap, place = divmod(position, ranks)
        dealt[place if lap % 2 == 0 else ranks - 1 - place].append(row)
    plans = [_cut(rows, lengths, budget) for rows in dealt]
    most = max(len(plan) for plan in plans)
    for plan in plans:
        _split_until(plan, most)
    return plans


def _plan_units(
    lengths: Sequence[int], budget: int, ranks: int, units: Sequence[int]
) -> list[list[list[int]]]:
    """Deal whole units to the ranks, longest first, and fill micro-batches with them up to the budget."""
    members: dict[int, list[int]] = {}
    for row, unit in enumerate(units):
        members.setdefault(unit, []).append(row)
    width = {unit: max(lengths[row] for row in rows) for unit, rows in members.items()}
    order = sorted(members, key=lambda unit: (-width[unit] * len(members[unit]), unit))
    plans: list[list[list[int]]] = [[] for _ in range(ranks)]
    widest = [0] * ranks
    for position, unit in enumerate(order):
        rank, rows = position % ranks, members[unit]
        plan = plans[rank]
        wide = max(widest[rank], width[unit])
        if plan and (len(plan[-1]) + len(rows)) * wide <= budget:
            plan[-1].extend(rows)
            widest[rank] = wide
        else:
            plan.append(list(rows))
            widest[rank] = width[unit]
    most = max(len(plan) for plan in plans)
    for plan in plans:
        plan.extend([] for _ in range(most - len(plan)))
    return plans


def _cut(rows: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut rows, in order, into micro-batches as wide as their longest row."""
    plan: list[list[int]] = []
    widest = 0
    for row in rows:
        widest = max(widest, lengths[row])
        if plan and (len(plan[-1]) + 1) * widest <= budget:
            plan[-1].append(row)
        else:
            plan.append([row])
            widest = lengths[row]
    return plan


def _split_until(plan: list[list[int]], count: int) -> None:
    while len(plan) < count:
        widest = max(range(len(plan)), key=lambda i: len(plan[i]), default=-1)
        if widest < 0 or len(plan[widest]) < 2:
            plan.append([])
            continue
        rows = plan[widest]
        plan[widest : widest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
