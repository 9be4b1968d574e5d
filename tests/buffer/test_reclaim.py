"""Workers that start anew, and workers that are not believed: what becomes of the tasks they held."""

import pytest

from asyncrl.errors import ConflictError
from tests.buffer.factories import group, lease, ledger


def state_of(made, task):
    return made._store.row("SELECT state FROM tasks WHERE id = ?", task)[0]


def test_a_worker_that_restarts_loses_its_own_leases_only():
    made = ledger()
    mine, other = lease(made, "a"), lease(made, "b")
    finished = lease(made, "a")
    made.put(group(finished))
    assert made.reclaim("a") == 1
    assert [state_of(made, one.task.id) for one in (mine, other, finished)] == ["pending", "leased", "ready"]
    again = lease(made, "a")
    assert (again.task.id, again.attempt) == (mine.task.id, 2)
    assert made.reclaim("nobody") == 0


def test_a_task_that_kills_its_worker_three_times_is_set_aside_with_a_reason():
    made = ledger(count=1, max_attempts=3)
    for attempt in range(3):
        assert lease(made, "w").attempt == attempt + 1
        made.reclaim("w")
    assert made.lease("w") is None
    row = made._store.row("SELECT state, failure, reason FROM tasks")
    assert row == ("failed", "infrastructure", "worker w died with the lease")


def test_a_rejected_group_costs_its_worker_and_the_rest_of_the_batch_is_taken_again():
    made = ledger()
    bad, good, running = lease(made, "liar"), lease(made, "honest"), lease(made, "liar")
    made.put(group(bad))
    made.put(group(good))
    assert len(made.take(0).groups) == 2
    assert made.reject(0, [bad.id], "made up") == ["liar"]
    assert [state_of(made, one.task.id) for one in (bad, good, running)] == ["pending", "ready", "pending"]
    with pytest.raises(ConflictError, match="'liar' is quarantined: made up"):
        made.lease("liar")
    replaced = lease(made, "honest")
    assert replaced.task.id == bad.task.id
    made.put(group(replaced))
    assert len(made.take(0).groups) == 2
    assert made.commit(1)
    assert made.stats()["trained"] == 2


def test_a_batch_that_was_given_back_or_committed_cannot_be_rejected():
    made = ledger()
    leases = [lease(made, "w"), lease(made, "v")]
    for one in leases:
        made.put(group(one))
    with pytest.raises(ConflictError, match="step 0: no such batch is taken"):
        made.reject(0, [leases[0].id], "too early")
    made.take(0)
    made.reject(0, [leases[0].id], "wrong")
    with pytest.raises(ConflictError, match="it may have been given back before"):
        made.reject(0, [leases[0].id], "wrong")
    assert made.stats()["quarantined"] == ["w"]
