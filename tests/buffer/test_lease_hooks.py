"""Hooks of the ledger are part of its transactions, and see each thing that happens once."""

import logging
from dataclasses import replace
from typing import ClassVar

import pytest

from asyncrl.buffer import lease_hooks
from asyncrl.buffer.lease_hooks import LeaseHook
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.errors import InputError
from asyncrl.types import FailureClass
from tests.buffer.factories import failed_group, group, lease, tasks


class Recorder(LeaseHook):
    """Writes what happens to a table, and gives each task its number as an extra."""

    def __init__(self, store, settings):
        self.store = store
        store.execute("CREATE TABLE IF NOT EXISTS seen (what TEXT, number INTEGER)")

    def _note(self, what, number):
        self.store.execute("INSERT INTO seen VALUES (?, ?)", (what, number))

    def on_grant(self, seq, version):
        self._note("grant", seq)

    def terms(self, seq, terms):
        return replace(terms, group_size=terms.group_size + 1, extras={**terms.extras, "number": seq})

    def on_put(self, seq, group):
        self._note("put", seq)

    def on_commit(self, version):
        self._note("commit", version)

    def on_rollback(self, version):
        self._note("rollback", version)

    def stats(self):
        return {"seen": self.store.row("SELECT COUNT(*) FROM seen")[0]}


class Planner(LeaseHook):
    """Plans one task when none waits, once."""

    def __init__(self, store, settings):
        self.store, self.asked = store, 0

    def plan(self):
        self.asked += 1
        if self.asked > 1:
            return False
        self.store.execute("INSERT INTO tasks (id, body) SELECT 'extra', body FROM tasks LIMIT 1")
        return True

    def terms(self, seq, terms):
        return replace(terms, max_turns=3, extras={**terms.extras, "planned": True})


class Keeper(LeaseHook):
    """Keeps every group."""

    def __init__(self, store, settings):
        pass

    def may_keep(self, group):
        return True

    def keeps(self, seq, deadline, group):
        return True


def opened(*hooks, count=4, **settings):
    chosen = {"groups_per_step": 2, "max_staleness": 1, "group_size": 2} | settings
    book = Ledger(":memory:", LedgerSettings(**chosen), now=0.0, hooks=hooks)
    book.add_tasks(tasks(count))
    return book


def seen(book):
    return book._store.rows("SELECT what, number FROM seen")


def test_a_hook_sees_grants_puts_commits_and_rollbacks_in_their_order():
    book = opened(Recorder)
    first, second = lease(book), lease(book)
    for one in (first, second):
        assert book.put(group(one, rewards=[0.0, 1.0, 0.0])).outcome == "ready"
        assert book.put(group(one, rewards=[0.0, 1.0, 0.0])).duplicate
    book.take(0, 0.0)
    book.commit(1)
    book.commit(1)
    book.rollback_to(0)
    assert seen(book) == [
        ("grant", 1), ("grant", 2), ("put", 1), ("put", 2), ("commit", 0), ("rollback", 0),
    ]  # fmt: skip
    assert book.stats()["seen"] == 6


class Watcher(LeaseHook):
    """Notes when the ledger is opened, and when a step has its batch."""

    seen: ClassVar[list] = []

    def __init__(self, store, settings):
        pass

    def on_open(self, changed):
        self.seen.append(("open", changed))

    def on_take(self, step, waited, now_s):
        self.seen.append(("take", step, waited, now_s))


def test_a_hook_is_told_of_the_opening_and_once_of_each_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(Watcher, "seen", [])
    path, settings = tmp_path / "l.sqlite", LedgerSettings(1, 1, 2)
    book = Ledger(path, settings, now=0.0, hooks=[Watcher])
    book.add_tasks(tasks(2))
    held = [lease(book), lease(book)]
    book.put(group(held[0]))
    book.take(0, 5.0)
    book.take(0, 6.0)
    book.commit(1)
    assert book.take(1, 7.0).groups is None
    book.put(group(held[1]))
    book.take(1, 8.0)
    book.close()
    Ledger(path, settings, hooks=[Watcher]).close()
    Ledger(path, replace(settings, max_staleness=2), hooks=[Watcher]).close()
    assert Watcher.seen == [
        ("open", True), ("take", 0, False, 5.0), ("take", 1, True, 8.0), ("open", False), ("open", True),
    ]  # fmt: skip


def test_what_a_hook_wrote_is_undone_with_the_transaction():
    book = opened(Recorder)
    held = lease(book)

    def put_and_fail():
        with book.batch():
            book.put(group(held, rewards=[0.0, 1.0, 0.0]))
            assert ("put", 1) in seen(book)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        put_and_fail()
    assert seen(book) == [("grant", 1)]
    with pytest.raises(InputError, match=r"group\.version"):
        book.put(replace(group(held, rewards=[0.0, 1.0, 0.0]), version=7))
    assert seen(book) == [("grant", 1)]


def test_a_group_that_is_played_again_is_not_put():
    book = opened(Recorder)
    held = lease(book)
    assert book.put(failed_group(held, [FailureClass.INFRASTRUCTURE] * 3)).outcome == "retried"
    assert seen(book) == [("grant", 1)]


def test_the_terms_of_all_hooks_are_in_the_lease_and_the_same_when_it_is_given_again():
    book = opened(Planner, Recorder)
    held = lease(book, request="r")
    assert (held.group_size, held.max_turns) == (3, 3)
    assert held.extras == {"planned": True, "number": 1}
    assert lease(book, request="r") == replace(held, expires_in_s=held.expires_in_s)
    assert seen(book) == [("grant", 1)], "the same lease is no new grant"


def test_a_hook_plans_when_no_task_waits():
    book = opened(Planner, count=1)
    assert [lease(book).task.id, lease(book).task.id] == ["t0", "t0"], "the second one is a copy of the first"
    assert book.lease("w", 0.0) is None


def test_a_group_without_a_signal_is_dropped_unless_a_hook_keeps_it():
    for hooks, outcome in (((), "dropped"), ((Keeper,), "ready"), ((Planner, Keeper), "ready")):
        book = opened(*hooks)
        finished = group(lease(book), rewards=[1.0, 1.0])
        assert book.put(finished).outcome == outcome


def test_a_hook_that_keeps_everybody_waiting_is_named_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(lease_hooks, "SLOW_S", -1.0)
    with caplog.at_level(logging.WARNING, "asyncrl.buffer"):
        lease(opened(Recorder))
    assert "Recorder.on_grant took 0.0 s, in which the buffer answered nobody" in caplog.text


def test_a_hook_is_found_by_its_kind():
    book = opened(Keeper, Recorder)
    assert isinstance(book.hook(Recorder), Recorder)
    assert book.hook(Planner) is None
