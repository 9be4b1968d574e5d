"""What the ledger does with tasks, leases and groups, one promise a test."""

import sqlite3
import zlib
from dataclasses import replace

import pytest

from asyncrl.buffer import body_files
from asyncrl.buffer.body_files import LARGE_BYTES
from asyncrl.buffer.ledger import LeaseGoneError, Ledger, LedgerSettings, UnknownLeaseError
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import ConfigError, ConflictError, InputError, QuarantineError, StaleError, StorageError
from asyncrl.types import FailureClass
from tests.buffer.factories import failed_group, group, lease, ledger, tasks, trajectory

LARGE = LARGE_BYTES // 26 + 100
"""Tokens of each of two trajectories that make a body large."""

AGENT, ENVIRONMENT, INFRASTRUCTURE = FailureClass.AGENT, FailureClass.ENVIRONMENT, FailureClass.INFRASTRUCTURE


def train_step(book, step, now=None):
    taken = book.take(step, now)
    assert taken.groups
    book.commit(step + 1)
    return [decode_group(body).task.id for body in taken.groups]


def test_tasks_are_leased_in_order_and_known_ids_are_planned_once():
    book = ledger(count=2)
    assert book.add_tasks(tasks(4)) == 2
    assert [lease(book).task.id for _ in range(4)] == ["t0", "t1", "t2", "t3"]
    assert book.lease("w") is None
    assert book.why_no_lease() == "full"


def test_a_lease_is_granted_only_while_slots_are_free():
    book = ledger(count=20)
    held = [lease(book) for _ in range(4)]
    assert book.lease("w") is None
    for one in held:
        book.put(group(one))
    assert book.lease("w") is None, "ready groups hold their slots"
    assert book.take(0).groups is not None
    assert book.lease("w") is None, "taken groups hold their slots"
    book.commit(1)
    assert [lease(book).version for _ in range(2)] == [1, 1]
    assert book.lease("w") is None


def test_why_no_lease_tells_the_cases_apart():
    book = ledger(count=1)
    assert book.why_no_lease() == ""
    book.pause(True)
    assert (book.lease("w"), book.why_no_lease()) == (None, "paused")
    book.pause(False)
    one = lease(book)
    assert book.why_no_lease() == "no tasks"
    book.close_plan()
    book.put(group(one))
    assert book.why_no_lease() == "no tasks"
    train_step(book, 0)
    assert (book.why_no_lease(), book.finished) == ("finished", True)


def test_an_abandoned_plan_drops_waiting_tasks_and_keeps_started_ones():
    book = ledger(count=5)
    begun = lease(book)
    assert book.close_plan(abandon=True) == 4
    assert book.stats()["dropped_by_reason"] == {"abandoned": 4}
    assert book.why_no_lease() == "no tasks"
    assert book.take(0).groups is None
    book.release(begun.id)
    assert book.close_plan(abandon=True) == 1
    assert book.take(0).groups == []
    assert book.finished


def waited_steps(book, steps):
    """Train steps whose batches the trainer waited for, ten seconds each; return the slots after each."""
    slots = []
    for step in steps:
        assert book.take(step).groups is None
        for _ in range(2):
            book.put(group(lease(book)))
        train_step(book, step, now=10.0 * step)
        slots.append(book.stats()["slots"])
    return slots


def test_auto_begins_with_one_more_batch_and_admits_more_while_the_trainer_waits():
    book = ledger(count=200, max_staleness=19, over_provision="auto")
    assert book.stats()["slots"] == 4
    # The trial ends after batches that took as long as before: no faster, so it is taken back.
    assert waited_steps(book, range(12)) == [4, 4, 5, 6, 6, 6, 6, 6, 6, 6, 4, 4]


def test_auto_admits_less_while_groups_wait_for_the_trainer():
    book = ledger(count=40, max_staleness=3, over_provision="auto")
    assert waited_steps(book, range(5))[-1] == 6
    for _ in range(6):
        book.put(group(lease(book)))
    slots = []
    for step in (5, 6):
        train_step(book, step)
        slots.append(book.stats()["slots"])
    assert slots == [5, 5]


def test_a_ledger_that_turns_to_auto_begins_like_a_new_one_and_keeps_what_it_has_found(tmp_path):
    path = tmp_path / "l.sqlite"
    book = ledger(path=path, count=40, max_staleness=3, over_provision=1)
    assert book.stats()["slots"] == 3
    book.close()
    auto = replace(book.settings, over_provision="auto")
    book = Ledger(path, auto, now=0.0)
    assert book.stats()["slots"] == 4
    assert waited_steps(book, range(3)) == [4, 4, 5]
    book.close()
    assert Ledger(path, auto, now=0.0).stats()["slots"] == 5


def test_a_repeated_lease_call_gets_the_same_lease():
    book = ledger()
    first = lease(book, request="call-1")
    assert lease(book, request="call-1").id == first.id
    assert lease(book, request="call-2").id != first.id
    assert lease(book, worker="other", request="call-1").id != first.id


def test_a_lost_lease_returns_its_task_with_a_new_admission_version():
    book = ledger(count=3)
    lost = lease(book, now=0.0)
    others = [lease(book, now=5.0) for _ in range(2)]
    assert book.expire(now=10.5) == 1
    for one in others:
        book.put(group(one))
    train_step(book, 0)
    again = lease(book, now=11.0)
    assert (again.task.id, again.version, again.deadline, again.attempt) == ("t0", 1, 2, 2)
    with pytest.raises(LeaseGoneError, match="has ended"):
        book.put(group(lost))


def test_a_renewed_lease_does_not_expire():
    book = ledger()
    one = lease(book, now=0.0)
    assert book.renew(one.id, now=9.0) == 10.0
    assert book.expire(now=15.0) == 0
    assert book.expire(now=19.5) == 1
    with pytest.raises(LeaseGoneError):
        book.renew(one.id, now=20.0)


def test_a_released_lease_costs_no_attempt():
    book = ledger(count=1, max_attempts=1)
    one = lease(book)
    assert book.release(one.id) == "pending"
    assert book.release(one.id) == "pending"
    assert lease(book).attempt == 1


def test_a_task_that_fails_too_often_is_set_aside_with_its_reason():
    book = ledger(count=1)
    assert book.fail(lease(book).id, ENVIRONMENT, "reset raised") == "pending"
    lease(book, now=0.0)
    assert book.expire(now=11.0) == 1
    last = lease(book)
    assert book.fail(last.id, ENVIRONMENT, "reset raised") == "failed"
    assert book.fail(last.id, ENVIRONMENT, "reset raised") == "failed", "repeating changes nothing"
    stats = book.stats()
    assert (stats["failed"], stats["failed_by_class"]) == (1, {"environment": 1})
    assert book.lease("w") is None


def test_an_agents_failure_cannot_end_a_lease():
    book = ledger()
    one = lease(book)
    with pytest.raises(InputError, match="an agent's failure is put as a group"):
        book.fail(one.id, AGENT, "")
    assert book.stats()["in_flight"] == 1


@pytest.mark.parametrize("lease_id", ["", "x", "1-", "99-1-ab", "-1", "9" * 30, "1" * 18])
def test_unknown_leases_are_refused(lease_id):
    book = ledger()
    for call in (book.renew, book.release):
        with pytest.raises(UnknownLeaseError):
            call(lease_id)


def test_a_repeated_put_counts_once():
    book = ledger()
    one = lease(book)
    assert book.put(group(one)).outcome == "ready"
    again = book.put(group(one))
    assert (again.outcome, again.duplicate, book.stats()["ready"]) == ("ready", True, 1)


@pytest.mark.parametrize(
    ("make", "outcome", "reason"),
    [
        (lambda one: group(one, rewards=(1.0, 1.0)), "dropped", "no_signal"),
        (lambda one: group(one, length=50), "dropped", "too_long"),
        (lambda one: failed_group(one, [AGENT, None]), "dropped", "too_few_usable"),
        (lambda one: failed_group(one, [INFRASTRUCTURE, None]), "retried", "broke"),
    ],
)
def test_a_group_that_cannot_be_trained_frees_its_slot_at_once(make, outcome, reason):
    book = ledger(count=5, max_tokens=40)
    held = [lease(book) for _ in range(4)]
    assert book.lease("w") is None
    result = book.put(make(held[0]))
    assert (result.outcome, result.reason) == (outcome, reason)
    assert book.lease("w") is not None
    if outcome == "dropped":
        assert book.stats()["dropped_by_reason"] == {reason: 1}
        assert book.put(make(held[0])).duplicate


def test_a_group_that_lacks_episodes_is_refused():
    book = ledger(group_size=4)
    with pytest.raises(InputError, match="must hold 4 episodes, got 2"):
        book.put(group(lease(book), rewards=(1.0, 1.0)))


def test_groups_without_signal_are_kept_on_request():
    book = ledger(drop_no_signal=False)
    assert book.put(group(lease(book), rewards=(1.0, 1.0))).outcome == "ready"


def test_a_token_older_than_the_admission_is_refused():
    book = ledger()
    for one in (lease(book), lease(book)):
        book.put(group(one))
    train_step(book, 0)
    one = lease(book)
    with pytest.raises(StaleError, match="must be at least 1, the version at admission, got 0"):
        book.put(group(one, versions=(0, 1)))
    other = lease(book)
    for held in (one, lease(book)):
        book.put(group(held, versions=(1, 1)))
    book.take(1)
    assert book.put(group(other, versions=(1, 2))).outcome == "ready", "engines may be one version ahead"


def test_a_version_that_cannot_exist_is_refused():
    book = ledger()
    with pytest.raises(InputError, match="must be at most 0, the newest version there can be, got 1"):
        book.put(group(lease(book), versions=(0, 1)))
    for _ in range(2):
        book.put(group(lease(book)))
    book.take(0)
    # Between a take and its commit the next version may be published already.
    with pytest.raises(InputError, match="must be at most 1, the newest version there can be, got 2"):
        book.put(group(lease(book), versions=(0, 2)))


@pytest.mark.parametrize("look", ["take", "peek"])
def test_a_group_labelled_with_a_version_to_come_is_left_out_and_its_worker_set_apart(look):
    """It would raise in the trainer, which may train versions up to the step's."""
    book = ledger()
    honest = [lease(book, "honest"), lease(book, "dishonest")]
    forged = lease(book, "forger")
    for one in honest:
        book.put(group(one))
    book.take(0)
    assert book.put(group(forged, versions=(0, 1))).outcome == "ready"
    book.reject(0, [honest[1].id], "its log-probabilities are off")
    found = book.take(0) if look == "take" else book.peek(0, [])
    assert forged.id not in [decode_group(body).id for body in found.groups or []]
    with pytest.raises(QuarantineError, match="claim versions after 0"):
        book.lease("forger")


FAULTY = "http://10.0.0.2:1"


def rejected(workers, shown):
    """A book whose batch of groups of these workers was rejected for the fault of an engine that some of them show."""
    book = Ledger(":memory:", LedgerSettings(len(workers), 0, 2))
    book.add_tasks(tasks(9))
    leases = [book.lease(worker) for worker in workers]
    for one in leases:
        book.put(group(one))
    book.take(0)
    ids = [leases[index].id for index in shown]
    assert book.reject(0, ids, "off", {FAULTY: ids}) == sorted({workers[index] for index in shown})
    return book


def test_groups_of_a_batch_that_cannot_be_trained_are_lost_attempts_and_the_rest_is_taken_again():
    book = Ledger(":memory:", LedgerSettings(2, 0, 2, max_attempts=2))
    book.add_tasks(tasks(3))
    leases = [book.lease("a") for _ in range(2)]
    for one in leases:
        book.put(group(one))
    book.take(0)
    assert book.fail_taken(0, [leases[0].id], "unknown") == 1
    assert (book.stats()["ready"], book.stats()["quarantined"]) == (1, [])
    with pytest.raises(ConflictError, match="no such batch is taken"):
        book.fail_taken(0, [leases[0].id], "unknown")
    again = book.lease("a")
    assert (again.task.id, again.attempt) == (leases[0].task.id, 2)
    book.put(group(again))
    assert len(book.take(0).groups) == 2
    # As often as `max_attempts` says; the task is then set aside.
    assert book.fail_taken(0, [again.id], "unknown") == 0
    assert book.stats()["failed"] == 1


@pytest.mark.parametrize(("workers", "shown"), [(["a", "b", "b"], [0, 1]), (["a", "a"], [0])])
def test_workers_that_a_faulty_engine_has_spoiled_are_readmitted_when_it_is_gone(workers, shown):
    book = rejected(workers, shown)
    assert book.stats()["faulty_engines"] == {FAULTY: "off"}
    with pytest.raises(QuarantineError, match="off"):
        book.lease("a")
    assert book.readmit_users("http://10.0.0.3:1") == []
    assert book.readmit_users(FAULTY) == sorted(set(workers))
    assert (book.stats()["faulty_engines"], book.stats()["quarantined"]) == ({}, [])
    assert book.lease("a") is not None


def test_one_of_two_workers_cannot_put_its_fault_on_an_engine():
    book = rejected(["a", "b"], [0])
    assert (book.stats()["faulty_engines"], book.stats()["quarantined"]) == ({}, ["a"])


def test_workers_wait_until_the_last_of_several_faulty_engines_is_gone():
    book = rejected(["a", "a"], [0])
    other = "http://10.0.0.4:1"
    lease = book.lease("b")
    book.quarantine("b", "its numbers are made up")
    with book._store.transaction():
        book._leases.blame(other, "off")
    assert lease is not None and book.readmit_users(FAULTY) == []
    assert book.readmit_users(other) == ["a"]
    assert book.stats()["quarantined"] == ["b"]


def test_a_token_id_beyond_the_vocabulary_is_refused():
    book = ledger(vocab_size=2)
    assert book.put(group(lease(book), versions=(0,))).outcome == "ready"
    with pytest.raises(InputError, match="token_ids: must be below 2, the model's vocabulary, got 2"):
        book.put(group(lease(book), versions=(0, 0)))


def test_a_reward_beyond_all_bounds_is_refused():
    book = ledger()
    one = lease(book)
    for rewards in ((0.0, 1e30), (-1e30, 0.0)):
        with pytest.raises(InputError, match=r"reward: must lie in ±1e\+12, got -?1e\+30"):
            book.put(group(one, rewards=rewards))
    assert book.put(group(one)).outcome == "ready"


def test_a_task_that_is_not_the_planned_one_is_refused():
    book = ledger()
    one = lease(book)
    for change in ({"seed": 9}, {"data": {"answer": "7"}}, {"env": "calculator"}, {"split": "heldout"}):
        with pytest.raises(InputError, match=r"must be what .* leased, task 't0' as it was planned"):
            book.put(group(replace(one, task=replace(one.task, **change))))
    assert book.put(group(one)).outcome == "ready"


def test_a_group_that_is_not_what_was_leased_is_refused():
    book = ledger()
    one, other = lease(book), lease(book)
    wrong_task = group(other)
    with pytest.raises(InputError, match=r"group\.task\.id"):
        book.put(type(wrong_task)(one.id, other.task, 0, wrong_task.trajectories))
    with pytest.raises(InputError, match="must hold 2 episodes, got 1"):
        book.put(group(one, rewards=(1.0,)))
    with pytest.raises(InputError, match=r"group\.version: must be the version at admission"):
        book.put(type(wrong_task)(one.id, one.task, 1, (trajectory("t0", 0), trajectory("t0", 1))))
    assert book.stats()["in_flight"] == 2


def test_a_step_keeps_its_batch_until_it_is_committed():
    book = ledger()
    for _ in range(4):
        book.put(group(lease(book)))
    first = book.take(0)
    assert book.take(0).groups == first.groups
    assert book.commit(1)
    assert not book.commit(1)
    second = book.take(1)
    assert {*first.groups}.isdisjoint(second.groups)
    with pytest.raises(ConflictError, match="step 0 cannot be taken: the committed version is 1"):
        book.take(0)


def test_mean_lengths_are_given_for_offered_and_for_trained_groups():
    book = ledger(count=20)
    assert book.stats()["offered_tokens_mean"] is None
    for versions in ((0,), (0, 0, 0)):
        book.put(group(lease(book), versions))
    book.put(group(lease(book), (0,) * 8, rewards=(1.0, 1.0)))
    stats = book.stats()
    assert (stats["dropped"], stats["offered_tokens_mean"], stats["trained_tokens_mean"]) == (1, 4.0, None)
    book.take(0)
    assert (book.stats()["offered_tokens_mean"], book.stats()["trained_tokens_mean"]) == (4.0, 2.0)


def test_versions_move_one_at_a_time_and_only_after_a_batch():
    book = ledger()
    with pytest.raises(ConflictError, match="no batch was taken for step 0"):
        book.commit(1)
    with pytest.raises(ConflictError, match="version 2 cannot follow version 0"):
        book.commit(2)


def test_a_look_at_a_step_shows_what_is_ready_and_binds_nothing():
    book = ledger(count=20, max_staleness=0)
    first, second = lease(book), lease(book)
    assert (book.peek(0, []).groups, book.peek(0, []).complete) == ([], False)
    book.put(group(second))
    seen = book.peek(0, [])
    assert [decode_group(body).id for body in seen.groups] == [second.id]
    assert not seen.complete
    book.put(group(first))
    rest = book.peek(0, [second.id])
    assert [decode_group(body).id for body in rest.groups] == [first.id]
    assert rest.complete
    assert book.stats()["taken"] == 0
    assert {decode_group(body).id for body in book.take(0).groups} == {first.id, second.id}
    assert (book.peek(0, [first.id, second.id]).groups, book.peek(0, []).complete) == ([], True)


def test_a_look_at_another_step_is_refused_and_at_an_exhausted_plan_is_complete():
    book = ledger(count=0)
    with pytest.raises(ConflictError, match="step 1 cannot be peeked at: the committed version is 0"):
        book.peek(1, [])
    assert not book.peek(0, []).complete
    book.close_plan()
    assert book.peek(0, []).complete


def test_a_step_waits_for_the_group_that_is_due():
    book = ledger(count=20)
    slow, *quick = [lease(book) for _ in range(4)]
    for one in quick:
        book.put(group(one))
    train_step(book, 0)
    for _ in range(2):
        book.put(group(lease(book)))
    waiting = book.take(1)
    assert (waiting.groups, waiting.awaited) == (None, (slow.id,))
    book.put(group(slow))
    assert "t0" in train_step(book, 1)


def test_the_last_batch_of_a_closed_plan_may_be_short():
    book = ledger(count=3)
    for _ in range(2):
        book.put(group(lease(book)))
    train_step(book, 0)
    book.put(group(lease(book)))
    assert book.take(1).groups is None
    book.close_plan()
    assert train_step(book, 1) == ["t2"]
    assert book.take(2).groups == []
    assert book.finished
    with pytest.raises(ConflictError, match="the plan is closed"):
        book.add_tasks(tasks(1, start=9))
    assert book.add_tasks(tasks(3)) == 0, "known tasks may be sent again"


def test_groups_of_a_batch_can_be_set_aside_before_the_commit():
    book = ledger()
    ids = [lease(book) for _ in range(2)]
    for one in ids:
        book.put(group(one))
    book.take(0)
    assert book.drop(0, [ids[0].id, "nonsense"], "nonfinite_gradient") == 1
    assert len(book.take(0).groups) == 1
    book.commit(1)
    stats = book.stats()
    assert (stats["trained"], stats["dropped_by_reason"]) == (1, {"nonfinite_gradient": 1})


@pytest.mark.parametrize(("staleness", "budget", "drops"), [(0, 0, 1), (1, 0, 2), (1, 1, 0), (2, 1, 0)])
def test_a_short_batch_lets_nothing_in_that_no_step_could_train_in_time(staleness, budget, drops):
    """A token budget, or groups set aside, leave a step with fewer groups than it has slots."""
    book = Ledger(":memory:", LedgerSettings(2, staleness, 2, token_budget=budget))
    book.add_tasks(tasks(30))

    def play(most=30):
        for _ in range(most):
            if (one := book.lease("w")) is not None:
                book.put(group(one))

    play(2)
    for step in range(5):
        batch = [decode_group(body).id for body in book.take(step).groups]
        book.drop(step, batch[:drops], "poison")
        play()
        book.commit(step + 1)
        play()
    assert book.take(5).groups


def test_the_next_steps_batch_may_be_taken_before_the_version_between_them_is_committed():
    book = Ledger(":memory:", LedgerSettings(2, 1, 2))
    book.add_tasks(tasks(9))
    with pytest.raises(ConflictError, match="step 1 cannot be taken"):
        book.take(1)
    for _ in range(4):
        book.put(group(lease(book)))
    first, second = book.take(0), book.take(1)
    assert (first.groups, second.groups) == (book.take(0).groups, book.take(1).groups)
    assert not set(first.groups) & set(second.groups)
    with pytest.raises(ConflictError, match="step 2 cannot be taken"):
        book.take(2)
    assert book.lease("w") is None, "what is admitted before the commit could not be trained in time"
    book.commit(1)
    assert (book.stats()["trained"], book.take(1).groups) == (2, second.groups)
    found = [book.lease("w") for _ in range(3)]
    assert [one and one.version for one in found] == [1, 1, None]
    book.commit(2)
    assert book.stats()["trained"] == 4


def test_a_batch_taken_ahead_is_given_back_alone():
    book = Ledger(":memory:", LedgerSettings(2, 1, 2))
    book.add_tasks(tasks(9))
    for _ in range(4):
        book.put(group(lease(book)))
    book.take(0)
    ahead = [decode_group(body).id for body in book.take(1).groups]
    assert book.reject(1, ahead[:1], "its numbers are wrong") == ["w"]
    book.commit(1)
    assert (book.stats()["trained"], book.stats()["taken"]) == (2, 0)
    with pytest.raises(ConflictError, match="no batch was taken for step 1"):
        book.commit(2)


def test_tokens_of_the_version_on_its_way_are_taken_ahead_and_shown_to_whoever_looks():
    book = Ledger(":memory:", LedgerSettings(1, 2, 2))
    book.add_tasks(tasks(9))
    leases = [lease(book) for _ in range(3)]
    book.put(group(leases[0]))
    book.take(0)
    book.put(group(leases[1], versions=(0, 1)))
    assert book.take(1).groups is not None
    book.put(group(leases[2], versions=(0, 1)))
    assert len(book.peek(0, []).groups) == 1
    assert book.stats()["quarantined"] == []


def test_a_restarted_trainer_gets_the_batch_of_the_committed_version_and_not_the_one_taken_ahead():
    book = Ledger(":memory:", LedgerSettings(1, 2, 2))
    book.add_tasks(tasks(9))
    leases = [lease(book) for _ in range(3)]
    book.put(group(leases[0]))
    first = book.take(0).groups
    for one, newest in zip(leases[1:], (0, 1), strict=True):
        book.put(group(one, versions=(0, newest)))
    book.take(1)
    assert book.rollback_to(0) == 1, "what the version on its way has sampled is played again"
    assert (book.take(0).groups, book.stats()["taken"], book.stats()["ready"]) == (first, 1, 1)
    book.commit(1)
    assert len(book.take(1).groups) == 1


def test_a_rollback_plans_later_steps_again():
    book = ledger(count=6)
    for _ in range(2):
        book.put(group(lease(book)))
    train_step(book, 0)
    for _ in range(2):
        book.put(group(lease(book)))
    train_step(book, 1)
    in_flight = lease(book)
    assert book.rollback_to(1) == 3
    assert (book.version, book.stats()["trained"]) == (1, 2)
    with pytest.raises(LeaseGoneError):
        book.put(group(in_flight))
    assert [lease(book).task.id for _ in range(4)] == ["t2", "t3", "t4", "t5"]
    with pytest.raises(ConflictError, match="cannot roll forward"):
        book.rollback_to(5)


def test_a_rollback_to_the_committed_version_keeps_the_batch_and_what_is_still_true():
    book = ledger()
    leases = [lease(book) for _ in range(4)]
    for one in leases[:3]:
        book.put(group(one))
    batch = book.take(0).groups
    book.put(group(leases[3], versions=(0, 1)))
    assert book.rollback_to(0) == 1, "tokens of version 1 were sampled from weights that are gone"
    assert book.take(0).groups == batch
    assert book.stats()["ready"] == 1


def test_all_that_is_in_flight_is_planned_again_when_its_policy_is_given_up():
    book = ledger(count=6)
    for _ in range(3):
        book.put(group(lease(book)))
    playing = lease(book)
    train_step(book, 0)
    with pytest.raises(ConflictError, match="cannot replan at version 0: the ledger is at 1"):
        book.replan(0)
    assert book.replan(1) == 2, "one is ready, one is being played"
    with pytest.raises(LeaseGoneError):
        book.put(group(playing))
    assert [(one.task.id, one.version) for one in (lease(book) for _ in range(3))] == [
        ("t2", 1),
        ("t3", 1),
        ("t4", 1),
    ]
    assert book.stats()["trained"] == 2


def test_a_worker_that_is_readmitted_gets_leases_again():
    book = ledger()
    book.quarantine("w", "made up")
    with pytest.raises(QuarantineError, match="'w' is quarantined: made up"):
        book.lease("w")
    assert book.readmit("w") == "made up"
    assert book.lease("w") is not None
    assert book.readmit("w") == ""


def test_a_quarantined_worker_loses_what_is_not_yet_taken():
    book = ledger()
    bad, good = lease(book, worker="bad"), lease(book, worker="good")
    book.put(group(bad))
    book.put(group(good))
    assert book.quarantine("bad", "its log-probabilities are off by 0.3") == 1
    assert (book.stats()["ready"], book.stats()["quarantined"]) == (1, ["bad"])
    with pytest.raises(ConflictError, match="worker 'bad' is quarantined: its log-probabilities are off"):
        book.lease("bad")
    assert lease(book, worker="good").task.id == "t0"


def test_everything_survives_reopening(tmp_path):
    path = tmp_path / "ledger.sqlite"
    book = ledger(path)
    ready, leased = lease(book, now=0.0), lease(book, now=0.0)
    book.put(group(ready))
    before = book.stats()
    book.close()
    book = Ledger(path, LedgerSettings(2, 1, 2, lease_s=10.0), now=1000.0)
    assert book.stats() == before
    assert book.expire(now=1009.0) == 0, "a lease has its full time after a restart"
    assert book.put(group(leased)).outcome == "ready"
    assert len(book.take(0).groups) == 2


def test_other_bounds_plan_the_groups_in_flight_again(tmp_path):
    path = tmp_path / "ledger.sqlite"
    book = ledger(path)
    book.put(group(lease(book)))
    book.close()
    book = Ledger(path, LedgerSettings(4, 0, 2))
    assert (book.stats()["pending"], book.stats()["ready"]) == (8, 0)


def test_a_ledger_in_use_is_refused(tmp_path):
    book = ledger(tmp_path / "ledger.sqlite")
    with pytest.raises(ConfigError, match="another buffer uses it"):
        Ledger(tmp_path / "ledger.sqlite", book.settings)


def test_a_path_that_cannot_hold_a_ledger_is_named(tmp_path):
    with pytest.raises(ConfigError, match="check that its folder exists"):
        ledger(tmp_path / "missing" / "ledger.sqlite")
    (tmp_path / "text").write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(ConfigError, match="file is not a database"):
        ledger(tmp_path / "text")


def test_a_full_disk_changes_nothing_and_says_so(tmp_path):
    book = ledger(tmp_path / "ledger.sqlite")
    one = lease(book)
    before = book.stats()
    book._store.execute("PRAGMA max_page_count=12")
    with pytest.raises(StorageError, match="database or disk is full; nothing was changed"):
        book.put(group(one, length=8_000))
    assert book.stats() == before
    book._store.execute("PRAGMA max_page_count=100000")
    assert book.put(group(one, length=8_000)).outcome == "ready"


def test_a_full_disk_of_large_bodies_changes_nothing_and_says_so(tmp_path):
    book = ledger(tmp_path / "ledger.sqlite")
    one = lease(book)
    before = book.stats()
    full = tmp_path / "ledger.bodies" / "00000000.body"
    full.symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"00000000.body: No space left on device; nothing was changed"):
        book.put(group(one, length=LARGE))
    assert book.stats() == before
    full.unlink()
    assert book.put(group(one, length=LARGE)).outcome == "ready"


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "ledger.bodies").iterdir())


def test_large_bodies_are_files_that_later_groups_use_again(tmp_path):
    book = ledger(tmp_path / "ledger.sqlite", drop_no_signal=True)
    leases = [lease(book) for _ in range(4)]
    sent = [group(one, length=LARGE) for one in leases[:2]]
    for one in sent:
        book.put(one)
    # Neither a group that is dropped nor one that is known needs a file.
    assert book.put(group(leases[2], rewards=(0.0, 0.0), length=LARGE)).outcome == "dropped"
    assert book.put(sent[0]).duplicate
    assert book.take(0).groups == [encode_group(one) for one in sent]
    assert files(tmp_path) == ["00000000.body", "00000001.body"]
    book.commit(1)
    late = group(lease(book), length=LARGE + 5)
    book.put(late)
    book.put(group(leases[3], length=LARGE))
    assert files(tmp_path) == ["00000000.body", "00000001.body"]
    assert encode_group(late) in book.take(1).groups
    book.commit(2)
    book.close()
    assert files(tmp_path) == []


def test_a_file_that_another_process_writes_is_its_own_until_it_is_claimed(tmp_path, monkeypatch):
    book = ledger(tmp_path / "ledger.sqlite", drop_no_signal=True)
    folder = tmp_path / "ledger.bodies"
    one = group(lease(book), length=LARGE)
    body = encode_group(one)
    late, number = book.reserve("worker/w", 2)
    body_files.write_reserved(folder, number, body)
    assert book.claim("worker/other", number, len(body)) is None
    assert book.claim("worker/w", number, len(body)) == body
    assert book.claim("worker/w", number, len(body)) is None, "once"
    assert book.put(one, body, book.stage(one, body, number)).outcome == "ready"
    # A group that no step can train frees the file that it came in; what is shorter than was said, as well.
    dull, unread = book.reserve("worker/w", 2)
    same = group(lease(book), rewards=(0.0, 0.0), length=LARGE)
    assert (book.stage(same, encode_group(same), dull), book.reserve("worker/w", 1)) == (None, [dull])
    body_files.write_reserved(folder, unread, b"torn")
    assert book.claim("worker/w", unread, 5) is None
    assert book.reserve("worker/w", 1) == [unread]
    # Who is late finds no file that is another group's by now.
    monkeypatch.setattr(body_files, "RESERVED_S", -1.0)
    book.expire(0.0)
    assert book.claim("worker/w", late, 1) is None
    book._store.close()
    again = Ledger(tmp_path / "ledger.sqlite", book.settings)
    assert not {late, number, dull, unread} & set(again.reserve("worker/w", 20))
    assert again._bodies.read(again._bodies.find(1)) == body


def test_the_checksums_of_earlier_versions_are_read(tmp_path):
    files = body_files.BodyFiles(tmp_path)
    stored = files.write(b"group" * 9)
    assert stored.checksum >= 2**62
    assert files.read(replace(stored, checksum=zlib.crc32(b"group" * 9))) == b"group" * 9
    assert files.read(replace(stored, checksum=zlib.crc32(b"grouq" * 9))) is None


def test_a_put_that_is_undone_gives_its_file_back(tmp_path):
    book = ledger(tmp_path / "ledger.sqlite")
    one = group(lease(book), length=LARGE)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            put_and_fail(book, one)
    book.put(one)
    assert files(tmp_path) == ["00000000.body"]
    assert book.put(group(lease(book), length=LARGE)).outcome == "ready"
    assert book.take(0).groups[0] == encode_group(one)


def test_files_without_a_row_are_swept_when_the_ledger_is_opened(tmp_path):
    book = ledger(tmp_path / "ledger.sqlite")
    one = group(lease(book), length=LARGE)
    book.put(one)
    # As a process leaves it that is killed between the file and the row, or in the middle of a file.
    orphan = book.stage(group(lease(book), length=LARGE), bytes(LARGE_BYTES))
    (tmp_path / "ledger.bodies" / "00000009.body").write_bytes(b"torn")
    assert (orphan.file, len(files(tmp_path))) == (1, 3)
    book._store.close()
    book = Ledger(tmp_path / "ledger.sqlite", book.settings)
    assert files(tmp_path) == ["00000000.body"]
    book.put(group(lease(book), length=LARGE))
    assert encode_group(one) in book.take(0).groups


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_group_whose_file_lost_it_is_planned_again_and_the_batch_is_chosen_anew(tmp_path, damage):
    book = ledger(tmp_path / "ledger.sqlite")
    first, second, third = (lease(book) for _ in range(3))
    for one in (first, second):
        book.put(group(one, length=LARGE))
    assert len(book.take(0).groups) == 2
    path = tmp_path / "ledger.bodies" / "00000001.body"
    _ = path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-9] + b"otherwise")
    assert book.take(0).groups is None
    assert (book.stats()["ready"], book.stats()["pending"]) == (1, 6)
    book.put(group(third))
    assert book.take(0).groups == [encode_group(g) for g in (group(first, length=LARGE), group(third))]


def put_and_fail(book, finished):
    with book.batch():
        book.put(finished)
        raise ZeroDivisionError


def test_calls_in_a_batch_fail_one_by_one_and_reach_the_disk_together():
    book = ledger()
    good, bad = lease(book), lease(book)
    with book.batch():
        book.put(group(good))
        with pytest.raises(InputError):
            book.put(group(bad, rewards=(1.0,)))
    assert (book.stats()["ready"], book.stats()["in_flight"]) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        put_and_fail(book, group(bad))
    assert book.stats()["in_flight"] == 1


def test_a_lower_staleness_limit_admits_fewer_groups_and_leaves_those_admitted():
    book = ledger(count=20)
    held = [lease(book) for _ in range(4)]
    book.set_staleness_limit(0)
    assert book.stats()["staleness_limit"] == 0
    for one in held:
        book.put(group(one))
    train_step(book, 0)
    assert book.lease("w") is None, "two groups are left, which is all a limit of 0 admits"
    train_step(book, 1)
    assert [lease(book).version for _ in range(2)] == [2, 2]
    assert book.lease("w") is None
    book.set_staleness_limit(1)
    assert [lease(book).version for _ in range(2)] == [2, 2]


def test_a_staleness_limit_above_the_recipes_is_refused_and_one_set_survives_a_restart(tmp_path):
    path = tmp_path / "l.sqlite"
    book = ledger(path=path)
    for wrong in (-1, 2):
        with pytest.raises(
            InputError, match=f"the staleness limit must be from 0 to max_staleness=1, got {wrong}"
        ):
            book.set_staleness_limit(wrong)
    book.set_staleness_limit(0)
    settings = book.settings
    book.close()
    assert Ledger(path, settings, now=0.0).stats()["staleness_limit"] == 0


def test_a_ledger_of_an_unknown_schema_is_refused(tmp_path):
    path = tmp_path / "l.sqlite"
    ledger(path=path).close()
    old = sqlite3.connect(path)
    old.execute("UPDATE facts SET value = 1 WHERE name = 'schema'")
    old.commit()
    old.close()
    with pytest.raises(ConfigError, match="has schema 1, this version reads 5"):
        ledger(path=path)


@pytest.mark.parametrize("bad", [{"groups_per_step": 0}, {"max_staleness": -1}, {"lease_s": 0.0}])
def test_settings_out_of_range_are_named(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ledger(**bad)


def test_groups_without_a_signal_are_trained_once_four_batches_of_them_were_dropped_for_the_step():
    book = Ledger(":memory:", LedgerSettings(1, 1, 2))
    book.add_tasks(tasks(40))

    def put_alike() -> str:
        lease = book.lease("w")
        assert lease is not None
        return book.put(group(lease, rewards=(1.0, 1.0))).outcome

    for step in range(3):
        assert [put_alike() for _ in range(5)] == ["dropped"] * 4 + ["ready"]
        assert len(book.take(step).groups) == 1
        book.commit(step + 1)


def test_a_worker_that_only_renews_its_leases_keeps_nobody_from_work_for_ever():
    settings = LedgerSettings(2, 1, 4, lease_s=100.0, lease_life_s=1000.0)
    book = Ledger(":memory:", settings, now=0.0)
    book.add_tasks(tasks(8))
    held = []
    while (found := book.lease("mallory", now=0.0, request=f"r{len(held)}")) is not None:
        held.append(found.id)
    assert book.lease("honest", now=0.0) is None
    now = 0.0
    while now < 1000.0:
        now += 50.0
        assert book.expire(now) == 0
        for number, name in enumerate(held):
            # Either call gives the lease its time again.
            book.renew(name, now=now)
            assert book.lease("mallory", now=now, request=f"r{number}").id == name
    assert book.lease("honest", now=now) is None
    assert book.expire(now + 50.0) == len(held)
    with pytest.raises(LeaseGoneError):
        book.renew(held[0], now=now + 50.0)
    with pytest.raises(
        QuarantineError, match=r"has renewed lease .* for 1000 s, longer than a group can take"
    ):
        book.lease("mallory", now=now + 50.0)
    found = book.lease("honest", now=now + 50.0)
    assert (found.attempt, book.stats()["quarantined"]) == (1, ["mallory"])


def test_a_lease_that_is_put_in_time_or_whose_time_starts_anew_is_not_too_old():
    settings = LedgerSettings(2, 1, 2, lease_s=100.0, lease_life_s=1000.0)
    book = Ledger(":memory:", settings, now=0.0)
    book.add_tasks(tasks(4))
    first, second = book.lease("w", now=0.0), book.lease("w", now=0.0)
    book.put(group(first))
    book.restart_leases(950.0)
    book.renew(second.id, now=1000.0)
    assert book.expire(1010.0) == 0
    assert book.stats()["quarantined"] == []
