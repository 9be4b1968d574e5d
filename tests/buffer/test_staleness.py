"""The arithmetic of the strict limit: never stale, never stuck, nothing thrown away for being slow."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.buffer.staleness import (
    NEVER,
    Admitted,
    can_choose,
    capacity,
    choose,
    deadline,
    first_infeasible,
    free_slots,
)
from asyncrl.buffer.token_budget import TokenBudget


def early_end(budget):
    """What ends a step early with a token budget, of which 0 is none."""
    return TokenBudget(budget) if budget else NEVER


def feasible_by_counting(deadlines, version, groups_per_step):
    """The condition as it is written: for every j > k, the groups due by j fit in steps k+1 .. j."""
    last = max([version, *deadlines]) + 1
    overdue = any(d <= version for d in deadlines)
    return not overdue and all(
        sum(d <= j for d in deadlines) <= (j - version) * groups_per_step
        for j in range(version + 1, last + 1)
    )


@given(st.lists(st.integers(0, 8), max_size=12), st.integers(0, 4), st.integers(1, 3))
def test_feasibility_is_the_written_condition(deadlines, version, groups_per_step):
    found = first_infeasible(deadlines, version, groups_per_step) is None
    assert found == feasible_by_counting(deadlines, version, groups_per_step)


groups_at = st.lists(st.tuples(st.integers(3, 7), st.booleans(), st.integers(0, 9)), max_size=7).map(
    lambda found: [Admitted(f"g{i}", due, i, ready, n) for i, (due, ready, n) in enumerate(found)]
)


@given(groups_at, st.integers(1, 3))
def test_a_step_is_chosen_whenever_any_choice_keeps_every_deadline(groups, groups_per_step):
    choice = choose(groups, 3, groups_per_step)
    ready = [g for g in groups if g.ready]
    possible = [
        chosen
        for chosen in combinations(ready, groups_per_step)
        if feasible_by_counting([g.deadline for g in groups if g not in chosen], 3, groups_per_step)
    ]
    assert bool(choice.groups) == bool(possible)
    if choice.groups:
        by_id = {g.id: g for g in groups}
        assert tuple(by_id[i] for i in choice.groups) in [
            tuple(sorted(p, key=lambda g: (g.deadline, g.order))) for p in possible
        ]


@given(groups_at, st.integers(1, 3), st.booleans(), st.integers(0, 20))
def test_the_counts_alone_say_whether_a_step_is_chosen(groups, groups_per_step, last, budget):
    ready, unfinished = (Counter(g.deadline for g in groups if g.ready is which) for which in (True, False))
    tokens = sum(g.tokens for g in groups if g.ready)
    found = can_choose(ready, unfinished, tokens, 3, groups_per_step, last, early_end(budget))
    assert found == bool(
        choose(groups, 3, groups_per_step, last, early_end(budget)).groups or (last and not groups)
    )


@given(groups_at, st.integers(1, 3), st.integers(1, 20))
def test_a_token_budget_takes_the_fewest_groups_that_reach_it_and_keep_every_deadline(
    groups, groups_per_step, budget
):
    choice = choose(groups, 3, groups_per_step, early=TokenBudget(budget))
    ready = sorted((g for g in groups if g.ready), key=lambda g: (g.deadline, g.order))[:groups_per_step]
    by_id = {g.id: g for g in groups}
    chosen = [by_id[name] for name in choice.groups]
    assert chosen == ready[: len(chosen)]

    def complete(count):
        """Whether the first `count` of the ready groups could be the step: enough, and nobody else comes too late."""
        enough = count == groups_per_step or sum(g.tokens for g in ready[:count]) >= budget
        kept = [g.deadline for g in groups if g not in ready[:count]]
        return enough and feasible_by_counting(kept, 3, groups_per_step)

    fewest = next((count for count in range(1, len(ready) + 1) if complete(count)), 0)
    assert len(chosen) == fewest


def test_a_token_budget_ends_a_step_early_without_waiting():
    groups = [Admitted("a", 5, 0, True, 60), Admitted("b", 5, 1, True, 50), Admitted("c", 5, 2, False)]
    assert choose(groups, 3, 3, early=TokenBudget(100)).groups == ("a", "b")
    assert choose(groups, 3, 3, early=TokenBudget(111)).awaited == ("c",)
    assert choose(groups, 3, 3).awaited == ("c",)


def test_groups_beyond_a_step_are_limited_to_what_the_bound_allows():
    assert [capacity(2, 4, beyond) for beyond in (None, 0, 3, 8, 99)] == [12, 4, 7, 12, 12]


def test_the_designs_example_waits_for_the_group_that_would_miss_its_deadline():
    """S = 2, P = 1: three groups admitted at 0, a fourth at 1 that is the only one ready."""
    groups = [Admitted(f"old{i}", 2, i, False) for i in range(2)] + [Admitted("young", 3, 3, True)]
    assert choose(groups, 1, 1).awaited == ("old0", "old1")
    on_time = [Admitted("old0", 2, 0, True), *groups[1:]]
    assert choose(on_time, 1, 1).groups == ("old0",)


def test_the_older_lease_goes_first_among_equal_deadlines():
    groups = [Admitted("b", 5, 2, True), Admitted("a", 5, 1, True), Admitted("c", 4, 3, True)]
    assert choose(groups, 3, 2).groups == ("c", "a")


def test_only_the_last_step_may_be_short():
    one = [Admitted("a", 5, 1, True)]
    assert choose(one, 3, 2).groups == ()
    assert choose(one, 3, 2, last=True).groups == ("a",)
    busy = [*one, Admitted("b", 5, 2, False)]
    assert choose(busy, 3, 2, last=True).awaited == ("b",)


class Schedule:
    """Admission and consumption as the ledger does them, with groups that finish, fail and are dropped at will."""

    def __init__(self, max_staleness, groups_per_step, over_provision=None, token_budget=0):
        self.S, self.P = max_staleness, groups_per_step
        self.beyond, self.budget = over_provision, token_budget
        self.version = 0
        self.count = 0
        self.open = {}
        self.taken = []
        """Groups of each batch that is taken and not committed: the second was taken ahead."""
        self.trained_lags = []

    def admit(self):
        slots = capacity(self.S, self.P, self.beyond)
        while free_slots(slots, len(self.open), sum(self.taken), len(self.taken), self.S, self.P) > 0:
            due = deadline(self.version, self.S)
            self.open[self.count] = Admitted(str(self.count), due, self.count, False)
            self.count += 1

    def finish(self, pick, what):
        unfinished = [g for g in self.open.values() if not g.ready]
        if not unfinished:
            return
        group = unfinished[pick % len(unfinished)]
        if what == "done":
            self.open[group.order] = Admitted(group.id, group.deadline, group.order, True, pick)
        else:
            del self.open[group.order]
            self.admit()

    def take(self):
        step = self.version + len(self.taken)
        choice = choose(list(self.open.values()), step, self.P, early=early_end(self.budget))
        for name in choice.groups:
            group = self.open.pop(int(name))
            self.trained_lags.append(step - (group.deadline - self.S))
        if choice.groups:
            self.taken.append(len(choice.groups))
            self.admit()
        return choice

    def drop(self):
        """Set a group of the newest batch aside."""
        self.taken[-1] = max(0, self.taken[-1] - 1)
        self.admit()

    def commit(self):
        self.taken.pop(0)
        self.version += 1
        self.admit()

    def step(self):
        choice = self.take()
        if choice.groups:
            self.commit()
        return choice


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.integers(0, 4),
    st.integers(1, 4),
    st.sampled_from([None, 0, 1, 5]),
    st.sampled_from([0, 1, 30, 80]),
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.sampled_from(["done", "done", "done", "done", "lost", "take", "take", "drop", "commit"]),
        ),
        max_size=150,
    ),
)
def test_no_schedule_is_stale_or_stuck(max_staleness, groups_per_step, beyond, budget, events):
    schedule = Schedule(max_staleness, groups_per_step, beyond, budget)
    schedule.admit()
    for pick, what in events:
        if what == "take" and len(schedule.taken) < 2:
            schedule.take()
        elif what in ("drop", "commit") and schedule.taken:
            getattr(schedule, what)()
        elif what in ("done", "lost"):
            schedule.finish(pick, what)
        step = schedule.version + len(schedule.taken)
        assert all(g.deadline >= step for g in schedule.open.values()), "a deadline has passed"
        # Whatever is open can be trained in time, this step included.
        deadlines = [g.deadline for g in schedule.open.values()]
        assert feasible_by_counting(deadlines, step - 1, groups_per_step)
    assert all(0 <= lag <= max_staleness for lag in schedule.trained_lags)
    while schedule.taken:
        schedule.commit()
    # Finishing what is awaited, and nothing else, always brings the step.
    for _ in range(10):
        choice = schedule.step()
        while not choice.groups:
            assert choice.awaited
            order = int(choice.awaited[0])
            group = schedule.open[order]
            schedule.open[order] = Admitted(group.id, group.deadline, order, True)
            choice = schedule.step()


@pytest.mark.parametrize("groups_per_step", [1, 3])
def test_without_staleness_every_group_is_trained_by_the_version_that_admitted_it(groups_per_step):
    schedule = Schedule(0, groups_per_step)
    schedule.admit()
    for _ in range(5):
        while not schedule.step().groups:
            schedule.finish(0, "done")
    assert schedule.trained_lags == [0] * (5 * groups_per_step)
