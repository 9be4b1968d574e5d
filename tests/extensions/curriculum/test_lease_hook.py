"""The curriculum in the ledger: proposals where tasks are leased, outcomes where groups are put, exact after deaths."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import zlib
from dataclasses import replace
from functools import partial

import pytest

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.data.codec import decode_group, pack, unpack
from asyncrl.errors import ConflictError, InputError, UnavailableError
from asyncrl.extensions.curriculum.curricula import factory
from asyncrl.extensions.curriculum.curriculum import BeliefCurriculum, Proposal
from asyncrl.extensions.curriculum.examples import examples_of
from asyncrl.extensions.curriculum.lease_hook import Proposals, add_pool, predictions
from asyncrl.types import FailureClass, Task, Turn
from tests.buffer.factories import failed_group, group

GROUP = 4
POOL = [Task(f"t{i}", "gridworld", i, data={"level": i % 3}) for i in range(12)]
PER_STEP = 3


def opened(
    path=":memory:",
    name="vade",
    total=0,
    group_size=GROUP,
    tasks=POOL,
    turn_slack=0.0,
    of_curriculum=None,
    complete_age=0,
    solved=(),
    **settings,
):
    chosen = {"groups_per_step": PER_STEP, "max_staleness": 0, "group_size": group_size} | settings
    make = factory(name, of_curriculum or {}, group_size, 5, turn_slack) if isinstance(name, str) else name
    hook = partial(Proposals, make=make, complete_age=complete_age)
    book = Ledger(path, LedgerSettings(**chosen), now=0.0, hooks=[hook])
    add_pool(book, tasks, total, solved)
    return book


def leases(book, count):
    found = [book.lease("w", 0.0) for _ in range(count)]
    return [lease for lease in found if lease is not None]


def played(lease):
    """A group whose rewards follow from the task and the version alone."""
    rng = random.Random(zlib.crc32(f"{lease.task.seed}-{lease.version}".encode()))
    skill = (lease.task.seed + lease.version) / 16
    rewards = [float(rng.random() < skill) for _ in range(lease.group_size)]
    made = group(lease, rewards=rewards, length=12)
    return with_turns(made, [1 + lease.task.seed % 4 + i % 2 for i in range(len(made.trajectories))])


def with_turns(made, turns):
    """The group's episodes with as many turns, all but the first of tokens that the policy did not sample."""
    return replace(
        made,
        trajectories=tuple(
            replace(
                t,
                turns=t.turns + tuple(Turn(at, at + 1) for at in range(2, count + 1)),
                conversation=f"{made.task.id}, episode {t.episode_index}",
            )
            for t, count in zip(made.trajectories, turns, strict=True)
        ),
    )


def train(book, steps, order, deaths=frozenset(), reopen=None):
    """Play and train whole steps, groups finishing in a random order; return each step's tasks.

    deaths: calls, by number, after which the buffer dies and `reopen` gives the next one.
    """
    trained, call = {}, 0
    while book.version < steps:
        held = {}
        while True:
            if call in deaths:
                book = reopen(book)
            call += 1
            while (lease := book.lease("w", 0.0, f"{book.version}-{len(held)}-{call}")) is not None:
                held[lease.id] = lease
            taken = book.take(book.version, 0.0)
            if taken.groups is not None:
                break
            finished = held.pop(order.choice(sorted(held)))
            book.put(played(finished))
        trained[book.version] = [decode_group(body).task.id for body in taken.groups]
        book.commit(book.version + 1)
    return book, trained


def proposed(book):
    return book._store.rows("SELECT seq, place, rollouts, predicted FROM proposals ORDER BY seq")


def limited(book):
    return book._store.rows("SELECT seq, max_turns FROM turn_limits ORDER BY seq")


def observed(book):
    return book._store.row("SELECT version, proposed, state FROM curriculum")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "turn_slack"),
    [("vade", 0), ("gdro", 0), ("staged", 0), ("vade", 1.5)],
)
def test_what_is_proposed_does_not_depend_on_deaths_or_on_who_finishes_first(name, turn_slack, tmp_path):
    whole, trained = train(opened(name=name, turn_slack=turn_slack), 8, random.Random(0))
    assert any(limited(whole)) == bool(turn_slack)

    def reopen(book):
        book.close()
        return opened(tmp_path / "killed.sqlite", name, turn_slack=turn_slack)

    for seed in range(3):
        path = tmp_path / "killed.sqlite"
        path.unlink(missing_ok=True)
        deaths = set(random.Random(seed).sample(range(40), 12))
        killed, again = train(
            opened(path, name, turn_slack=turn_slack),
            8, random.Random(seed + 1), deaths, reopen,
        )  # fmt: skip
        assert [sorted(ids) for ids in again.values()] == [sorted(ids) for ids in trained.values()]
        assert proposed(killed) == proposed(whole)
        assert observed(killed) == observed(whole)
        assert limited(killed) == limited(whole)
        killed.close()
    assert len({row[1] for row in proposed(whole)}) > PER_STEP


@pytest.mark.parametrize("checkpoint", [0, 3, 5])
def test_a_trainer_that_returns_to_a_checkpoint_gets_the_same_tasks_and_beliefs(checkpoint):
    whole, trained = train(opened(), 8, random.Random(0))
    book, _ = train(opened(), 6, random.Random(1))
    for lease in leases(book, 2):
        book.put(played(lease))
    book.rollback_to(checkpoint)
    assert observed(book)[0] == checkpoint
    book, again = train(book, 8, random.Random(2))
    assert {step: sorted(ids) for step, ids in again.items()} == {
        step: sorted(ids) for step, ids in trained.items() if step >= checkpoint
    }
    assert proposed(book) == proposed(whole)
    assert observed(book) == observed(whole)


def test_a_failed_transaction_changes_neither_the_ledger_nor_the_curriculum():
    book, other = opened(), opened()
    for one in (book, other):
        train(one, 1, random.Random(0))
        for lease in leases(one, PER_STEP):
            one.put(group(lease, rewards=(0.0, 1.0, 1.0, 1.0)))
        one.take(1, 0.0)
    before = observed(book)
    with contextlib.suppress(ZeroDivisionError), book.batch():
        book.commit(2)
        raise ZeroDivisionError
    assert observed(book) == before
    for one in (book, other):
        one.commit(2)
        leases(one, PER_STEP)
    assert observed(book) == observed(other)
    assert proposed(book) == proposed(other)


class Alternating(BeliefCurriculum):
    """Gives even places two rollouts and odd ones six."""

    def keys(self, rng):
        return -self.alpha

    def propose(self, count, number, busy=()):
        return [
            Proposal(p.place, 6 if p.place % 2 else 2, 0.25) for p in super().propose(count, number, busy)
        ]


def alternating(tasks):
    return Alternating(tasks, GROUP, 0)


def test_groups_have_the_size_that_was_proposed():
    book = opened(name=alternating, drop_no_signal=True)
    first = leases(book, PER_STEP)
    assert [lease.group_size for lease in first] == [6 if lease.task.seed % 2 else 2 for lease in first]
    size = first[0].group_size
    with pytest.raises(InputError, match=f"must hold {size} episodes, got {size + 1}"):
        book.put(group(first[0], rewards=[0.0, 1.0] + [0.0] * (size - 1)))
    for lease in first:
        result = book.put(group(lease, rewards=[0.0, 1.0] + [0.0] * (lease.group_size - 2)))
        assert result.outcome == "ready"
    assert len(book.take(0, 0.0).groups) == PER_STEP


def test_the_same_lease_is_repeated_with_the_same_size():
    book = opened(name=alternating)
    first = book.lease("w", 0.0, "call")
    assert book.lease("w", 0.0, "call").group_size == first.group_size


def test_outcomes_of_dropped_groups_are_observed_and_those_of_broken_ones_are_not():
    book = opened()
    first = leases(book, PER_STEP)
    broken = failed_group(first[0], [FailureClass.INFRASTRUCTURE] * GROUP)
    assert book.put(broken).outcome == "retried"
    assert book.put(group(first[1], rewards=[1.0] * GROUP)).reason == "no_signal"
    assert book.put(group(first[2], rewards=[0.0, 1.0, 1.0, 0.0])).outcome == "ready"
    for lease in leases(book, PER_STEP):
        book.put(group(lease, rewards=[0.0, 1.0, 0.0, 1.0]))
    book.take(0, 0.0)
    book.commit(1)
    curriculum, _ = book.hook(Proposals)._state()
    place_of = {seq: place for seq, place, _, _ in proposed(book)}
    dropped, ready = (place_of[int(lease.id.split("-")[0])] for lease in first[1:])
    assert (curriculum.alpha[dropped], curriculum.beta[dropped]) == (5, 1)
    assert (curriculum.alpha[ready], curriculum.beta[ready]) == (3, 3)
    # The broken group's task was played again: four episodes more, not eight.
    assert sum(curriculum.alpha + curriculum.beta - 2) == 4 * (PER_STEP + 1)


def test_what_a_quarantined_worker_has_put_is_forgotten_when_its_tasks_are_played_again():
    book = opened()
    for lease in leases(book, PER_STEP):
        book.put(group(lease, rewards=[1.0, 1.0, 1.0, 0.0]))
    assert book.quarantine("w", "its log-probabilities are wrong") == PER_STEP
    for _ in range(PER_STEP):
        book.put(group(book.lease("other", 0.0), rewards=[0.0, 0.0, 0.0, 1.0]))
    book.take(0, 0.0)
    book.commit(1)
    curriculum, _ = book.hook(Proposals)._state()
    assert sorted(curriculum.alpha)[-PER_STEP:] == [2.0] * PER_STEP
    assert sum(curriculum.alpha + curriculum.beta - 2) == 4 * PER_STEP


def test_a_verdict_counts_before_the_reward_and_an_episode_of_several_agents_once():
    book = opened()
    lease, *_ = leases(book, 1)
    made = group(lease, rewards=[0.5, 2.0, -1.0, 0.25])
    trajectories = list(made.trajectories)
    trajectories[3] = replace(trajectories[3], success=True)
    partner = replace(trajectories[0], episode_index=4, info={"rollout": 0}, reward=0.9)
    book.put(replace(made, trajectories=(*trajectories, partner)))
    book.hook(Proposals)._fold(curriculum := Noting(POOL, GROUP, 0), book.hook(Proposals)._state()[1], 0)
    (outcome,) = curriculum.noted
    assert outcome.successes == (0.5, 1.0, 0.0, 1.0)
    assert outcome.rewards == (0.5, 2.0, -1.0, 0.25)
    assert (outcome.version, outcome.tokens) == (0, 5)


class Noting(BeliefCurriculum):
    def observe(self, outcomes):
        self.noted = list(outcomes)


def test_few_tasks_wait_and_a_counted_run_ends_after_its_last():
    book = opened(total=7)
    assert book.stats()["pending"] == PER_STEP
    train(book, 1, random.Random(0))
    assert book.stats()["pending"] <= PER_STEP
    while not book.finished:
        for lease in leases(book, PER_STEP):
            book.put(group(lease, rewards=[0.0, 1.0] * 2))
        if book.take(book.version, 0.0).groups:
            book.commit(book.version + 1)
    assert book.stats()["curriculum_proposals"] == 7
    assert book.closed


def test_calibration_is_measured_on_what_was_predicted(tmp_path):
    path = tmp_path / "ledger.sqlite"
    book = opened(path, name=alternating)
    for lease in leases(book, PER_STEP):
        book.put(group(lease, rewards=[1.0, 0.0] * (lease.group_size // 2)))
    book.take(0, 0.0)
    assert "curriculum_brier" not in book.stats()
    book.commit(1)
    # 0.25 was predicted, and half of the episodes succeeded.
    assert book.stats()["curriculum_brier"] == pytest.approx(0.0625)
    assert book.stats()["curriculum_calibration_error"] == pytest.approx(0.25)
    book.close()
    assert predictions(path) == [(0.25, 0.5)] * PER_STEP


def test_a_pool_is_given_once_and_only_to_a_curriculum():
    book = opened()
    assert add_pool(book, POOL, 0) == 0
    with pytest.raises(ConflictError, match="pool has 12 tasks, and these 11 are not the same; resume with"):
        add_pool(book, POOL[1:], 0)
    plain = Ledger(":memory:", LedgerSettings(1, 0, 2))
    with pytest.raises(ConflictError, match="has no curriculum"):
        add_pool(plain, POOL, 0)
    assert not any(name.startswith("curriculum") for name in plain.stats())


def test_a_full_disk_at_a_proposal_leaves_no_half_of_it(monkeypatch):
    book = opened()
    leases(book, PER_STEP - 1)
    before = proposed(book)
    store = book._store
    book.put(group(lease := leases(book, 1)[0], rewards=[1.0] * GROUP))
    execute = type(store).execute

    def full(self, statement, values=()):
        if statement.startswith("INSERT INTO proposals"):
            raise sqlite3.OperationalError("database or disk is full")
        return execute(self, statement, values)

    monkeypatch.setattr(type(store), "execute", full)
    with pytest.raises(UnavailableError):
        book.lease("w", 0.0)
    monkeypatch.undo()
    assert proposed(book) == before
    assert book.lease("w", 0.0).id != lease.id
    assert len(proposed(book)) == len(before) + PER_STEP


def test_a_lease_has_the_turns_of_the_longest_success_and_some_more_also_when_it_is_given_again():
    book = opened(name="uniform", tasks=POOL[:1], turn_slack=1.5, groups_per_step=1)

    def step(rewards, turns):
        lease = book.lease("w", 0.0, f"call {book.version}")
        assert book.lease("w", 0.0, f"call {book.version}") == lease
        book.put(with_turns(group(lease, rewards=rewards, length=12), turns))
        book.take(book.version, 0.0)
        book.commit(book.version + 1)
        return lease.max_turns

    # 1.5 times 3 turns is 4.5; the failures of 9 turns say nothing. Then 5 turns, and the limit is 8 from there on.
    assert step([0.0, 1.0, 1.0, 0.0], [9, 2, 3, 9]) == 0
    assert step([0.0, 1.0, 1.0, 0.0], [5, 4, 5, 5]) == 5
    assert [step([1.0, 0.0, 0.0, 0.0], [2, 8, 8, 8]) for _ in range(2)] == [8, 8]


def test_what_tasks_that_fail_are_shown_does_not_depend_on_deaths_or_on_who_finishes_first(tmp_path):
    chosen = {"name": "xrpo", "of_curriculum": {"seeds": 2}, "tasks": POOL[:6], "drop_no_signal": False}
    whole, _ = train(opened(**chosen), 8, random.Random(0))
    shown = [unpack(body) for _, body in seeded(whole)]
    assert len(shown) > PER_STEP, "tasks that failed came again"
    assert {len(texts) for texts in shown} <= {1, 2} and len({*map(tuple, shown)}) > 1

    def reopen(book):
        book.close()
        return opened(tmp_path / "killed.sqlite", **chosen)

    for seed in range(2):
        path = tmp_path / "killed.sqlite"
        path.unlink(missing_ok=True)
        deaths = set(random.Random(seed).sample(range(40), 12))
        killed, _ = train(opened(path, **chosen), 8, random.Random(seed + 1), deaths, reopen)
        assert seeded(killed) == seeded(whole)
        assert observed(killed) == observed(whole)
        killed.close()
    book, _ = train(opened(**chosen), 6, random.Random(1))
    book.rollback_to(3)
    book, _ = train(book, 8, random.Random(2))
    assert (seeded(book), observed(book)) == (seeded(whole), observed(whole))


def seeded(book):
    return book._store.rows("SELECT seq, body FROM examples ORDER BY seq")


def test_a_task_that_failed_is_leased_with_an_example_of_another_also_when_the_lease_is_given_again():
    book = opened(
        name="xrpo", of_curriculum={"seeds": 1}, tasks=POOL[:2], groups_per_step=2, drop_no_signal=False
    )
    for lease in leases(book, 2):
        assert examples_of(lease) == ()
        made = group(lease, rewards=[float(lease.task.seed)] * lease.group_size, length=12)
        book.put(with_turns(made, [1] * lease.group_size))
    book.take(0, 0.0)
    book.commit(1)
    found = {}
    for number in range(2):
        lease = book.lease("w", 0.0, f"call {number}")
        assert book.lease("w", 0.0, f"call {number}") == lease
        found[lease.task.seed] = examples_of(lease)
    # Task 0 failed; the successes at task 1 are equally new and long, and the first is taken.
    solved = next(seq for seq, place, _, _ in proposed(book) if place == 1) - 1
    assert found == {0: (f"{solved:08d}-t1, episode 0",), 1: ()}


def test_outcomes_that_were_noted_without_turns_are_read():
    book = opened(name="uniform", turn_slack=2.0)
    lease, *_ = leases(book, 1)
    book.put(with_turns(group(lease, rewards=[0.0, 1.0, 1.0, 0.0], length=12), [3, 2, 4, 1]))
    (body,) = book._store.row("SELECT body FROM outcomes")
    *earlier, turns, example = unpack(body)
    assert (turns, example) == ([3, 2, 4, 1], "")
    for kept, read in ((earlier, ()), ([*earlier, turns], (3, 2, 4, 1))):
        book._store.execute("UPDATE outcomes SET body = ?", (pack(kept),))
        book.hook(Proposals)._fold(curriculum := Noting(POOL, GROUP, 0), book.hook(Proposals)._state()[1], 0)
        assert [(outcome.turns, outcome.example) for outcome in curriculum.noted] == [(read, "")]


def steps_of_one_task(book, *rewards):
    """Play, train and commit a step of the only task for each list of rewards."""
    for earned in rewards:
        assert book.put(group(book.lease("w", 0.0), rewards=earned)).outcome == "ready"
        assert book.take(book.version, 0.0).groups
        book.commit(book.version + 1)


def completing(age, **settings):
    chosen = {"groups_per_step": 1, "complete_age": age} | settings
    return opened(name="uniform", tasks=POOL[:1], **chosen)


def test_a_group_without_a_success_is_kept_where_one_of_its_task_was_trained_and_is_not_too_old():
    book = completing(age=2)
    nothing, mixed = [0.0] * GROUP, [0.0, 1.0, 0.0, 0.0]
    assert book.put(group(book.lease("w", 0.0), rewards=nothing)).reason == "no_signal"
    steps_of_one_task(book, mixed, nothing, nothing)
    # The success is of version 0, and step 3 is the first that may not train it.
    assert book.version == 3
    assert book.put(group(book.lease("w", 0.0), rewards=nothing)).reason == "no_signal"
    steps_of_one_task(book, mixed)
    assert book.put(group(book.lease("w", 0.0), rewards=[1.0] * GROUP)).reason == "no_signal", (
        "one without a failure has no signal, whatever there was before"
    )


@pytest.mark.parametrize(("solved", "outcome"), [((0,), "ready"), ((1,), "dropped"), ((), "dropped")])
def test_a_group_without_a_success_is_kept_where_one_of_its_task_was_recorded_before_the_run(solved, outcome):
    book = opened(name="uniform", tasks=POOL[:2], groups_per_step=2, complete_age=2, solved=solved)
    first = next(lease for lease in leases(book, 2) if lease.task.seed == 0)
    assert book.put(group(first, rewards=[0.0] * GROUP)).outcome == outcome


def test_recorded_successes_keep_groups_after_a_restart_and_only_where_groups_are_completed(tmp_path):
    book = opened(
        tmp_path / "l", name="uniform", tasks=POOL[:1], groups_per_step=1, complete_age=2, solved=(0,)
    )
    book.close()
    again = opened(tmp_path / "l", name="uniform", tasks=POOL[:1], groups_per_step=1, complete_age=2)
    assert again.put(group(again.lease("w", 0.0), rewards=[0.0] * GROUP)).outcome == "ready"
    without = opened(name="uniform", tasks=POOL[:1], groups_per_step=1, solved=(0,))
    assert without.put(group(without.lease("w", 0.0), rewards=[0.0] * GROUP)).reason == "no_signal"


def test_a_success_that_is_not_trained_yet_keeps_no_group():
    book = completing(age=4, groups_per_step=2, max_staleness=1)
    first, second = leases(book, 2)
    assert book.put(group(first, rewards=[0.0, 1.0, 0.0, 0.0])).outcome == "ready"
    assert book.put(group(second, rewards=[0.0] * GROUP)).reason == "no_signal"


def test_a_group_is_kept_only_if_the_success_is_young_enough_for_the_last_step_that_may_train_it():
    late, early = (completing(age, max_staleness=2) for age in (2, 3))
    for book in (late, early):
        steps_of_one_task(book, [0.0, 1.0, 0.0, 0.0])
        lease = book.lease("w", 0.0)
        # Admitted at version 1, it may be trained up to step 3; the success is of version 0.
        assert (lease.version, lease.deadline) == (1, 3)
    assert late.put(group(late.lease("w", 0.0), rewards=[0.0] * GROUP)).reason == "no_signal"
    assert early.put(group(early.lease("w", 0.0), rewards=[0.0] * GROUP)).outcome == "ready"


def test_a_success_whose_training_was_rolled_back_keeps_no_group():
    book = completing(age=4)
    steps_of_one_task(book, [0.0, 1.0, 0.0, 0.0])
    book.rollback_to(0)
    assert book.put(group(book.lease("w", 0.0), rewards=[0.0] * GROUP)).reason == "no_signal"
