"""Cutting a batch into micro-batches of bounded size, the same number on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PADDED_RATIO = 4
"""Packed rows may come to this many times the budget in padded tokens: the loss reads arrays [B,T], and on a CPU
attention is computed row by row."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What rows take that are computed as a tree of prefixes (`asyncrl.train.models.prefix_tree`): no padding, nothing
    after the last sampled token, and what rows of a group begin with only once."""

    lengths: list[int]
    """[B] tokens up to the last sampled one."""
    groups: list[int]
    """[B] the group of each row."""
    order: list[int]
    """[B] the rows, those of a group side by side and each next to one that it shares most with."""
    shared: list[int]
    """[B] for each of `order`: with how many tokens it begins as the one before it does; 0 for the first of a group."""

    def shared_within(self, rows: Sequence[int]) -> dict[int, int]:
        """Return, in their order, with how many tokens each of `rows` begins as the one of them before it."""
        chosen, found = set(rows), {}
        group, common = None, 0
        for row, shared in zip(self.order, self.shared, strict=True):
            common = min(common, shared) if self.groups[row] == group else 0
            group = self.groups[row]
            if row in chosen:
                found[row] = common
                common = self.lengths[row]
        return found

    def of(self, rows: Sequence[int]) -> Packing:
        """Return the packing of `rows`, by their places among them."""
        place = {row: number for number, row in enumerate(rows)}
        shared = self.shared_within(rows)
        return Packing(
            [self.lengths[row] for row in rows],
            [self.groups[row] for row in rows],
            [place[row] for row in shared],
            list(shared.values()),
        )


def pack_rows(rows: Sequence[np.ndarray], groups: Sequence[int]) -> Packing:
    """Return the packing of rows of whole numbers [L] or [L,C], each up to its last sampled token."""
    # What begins alike is side by side in the order of bytes, too.
    order = sorted(range(len(rows)), key=lambda row: (groups[row], rows[row].tobytes()))
    shared = [
        _common(rows[before], rows[row]) if number and groups[before] == groups[row] else 0
        for number, (before, row) in enumerate(zip(order[-1:] + order[:-1], order, strict=True))
    ]
    return Packing([len(row) for row in rows], list(groups), order, shared)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    most = min(len(a), len(b))
    differ = (a[:most] != b[:most]).reshape(most, -1).any(1)
    return int(differ.argmax()) if differ.any() else most


def plan_micro_batches(
    lengths: Sequence[int],
    budget: int,
    ranks: int = 1,
    units: Sequence[int] | None = None,
    packing: Packing | None = None,
) -> list[list[list[int]]]:
    """Assign rows to `[rank][micro-batch]` lists of row indices.

    Rows are sorted by length, dealt to the ranks in turn (longest first, back and forth, so that ranks get nearly
    equal numbers of tokens), and cut where the tokens that are computed would exceed `budget`: the number of rows times
    the longest of them, or with a `packing` those of their tree. A row longer than the budget gets its own micro-batch.
    Every rank gets the same number of micro-batches, since a forward pass may be a collective; a rank with fewer rows
    gets empty lists.

    `lengths`: [B] tokens. Deterministic. Every row appears exactly once. With a `packing`, rows of a group are
    adjacent, groups with the longest row first. With `units` [B], rows of equal unit (a group, for pairwise losses)
    stay in one micro-batch, even past the budget.
    """
    if budget < 1 or ranks < 1:
        raise ValueError(f"budget and ranks must be at least 1, got {budget} and {ranks}")
    if units is not None:
        return _plan_units(lengths, budget, ranks, units, packing)
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for position, row in enumerate(_longest_first(lengths, packing)):
        lap, place = divmod(position, ranks)
        dealt[place if lap % 2 == 0 else ranks - 1 - place].append(row)
    plans = []
    for rows in dealt:
        size = _Size(lengths, budget, packing, rows)
        plan: list[list[int]] = []
        for row in rows:
            if size.add([row]):
                plan[-1].append(row)
            else:
                plan.append([row])
        plans.append(plan)
    most = max(len(plan) for plan in plans)
    for plan in plans:
        _split_until(plan, most)
    return plans


def _longest_first(lengths: Sequence[int], packing: Packing | None) -> list[int]:
    """Return all rows, groups of a packing by their longest row."""
    if packing is None:
        return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    longest: dict[int, int] = {}
    for row, group in enumerate(packing.groups):
        longest[group] = max(lengths[row], longest.get(group, 0))
    return sorted(packing.order, key=lambda row: (-longest[packing.groups[row]], packing.groups[row]))


def _plan_units(
    lengths: Sequence[int], budget: int, ranks: int, units: Sequence[int], packing: Packing | None
) -> list[list[list[int]]]:
    """Deal whole units to the ranks, longest first, and fill micro-batches with them up to the budget."""
    members: dict[int, list[int]] = {}
    for row in range(len(lengths)) if packing is None else packing.order:
        members.setdefault(units[row], []).append(row)
    width = {unit: max(lengths[row] for row in rows) for unit, rows in members.items()}
    order = sorted(members, key=lambda unit: (-width[unit] * len(members[unit]), unit))
    plans: list[list[list[int]]] = [[] for _ in range(ranks)]
    for rank, plan in enumerate(plans):
        mine = [members[unit] for unit in order[rank::ranks]]
        size = _Size(lengths, budget, packing, [row for rows in mine for row in rows])
        for rows in mine:
            if size.add(rows):
                plan[-1].extend(rows)
            else:
                plan.append(list(rows))
    most = max(len(plan) for plan in plans)
    for plan in plans:
        plan.extend([] for _ in range(most - len(plan)))
    return plans


class _Size:
    """What the micro-batch that is being filled takes, of those of `rows`."""

    def __init__(
        self, lengths: Sequence[int], budget: int, packing: Packing | None, rows: Sequence[int]
    ) -> None:
        self._lengths, self._budget, self._packing = lengths, budget, packing
        self._shared = {} if packing is None else packing.shared_within(rows)
        self._count = self._widest = self._distinct = 0
        self._group: int | None = None

    def add(self, rows: list[int]) -> bool:
        """Return whether `rows` fit; where they do not, they begin the next micro-batch."""
        if self._count and self._fits(rows):
            return True
        self._count = self._widest = self._distinct = 0
        self._group = None
        self._fits(rows)
        return False

    def _fits(self, rows: list[int]) -> bool:
        """Count `rows`, too; return whether all that is counted keeps to the budget."""
        self._count += len(rows)
        self._widest = max(self._widest, *(self._lengths[row] for row in rows))
        padded = self._count * self._widest
        if self._packing is None:
            return padded <= self._budget
        for row in rows:
            group = self._packing.groups[row]
            self._distinct += self._packing.lengths[row] - (self._shared[row] if group == self._group else 0)
            self._group = group
        return self._distinct <= self._budget and padded <= PADDED_RATIO * self._budget


def _split_until(plan: list[list[int]], count: int) -> None:
    while len(plan) < count:
        widest = max(range(len(plan)), key=lambda i: len(plan[i]), default=-1)
        if widest < 0 or len(plan[widest]) < 2:
            plan.append([])
            continue
        rows = plan[widest]
        plan[widest : widest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
