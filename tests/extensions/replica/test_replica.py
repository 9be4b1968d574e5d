"""The ledger's second place: what was acknowledged can be restored from it at any moment."""

import shutil
import sqlite3

import pytest

from asyncrl.buffer.body_files import LARGE_BYTES
from asyncrl.buffer.ledger import Ledger
from asyncrl.errors import ConfigError, StorageError
from asyncrl.extensions.replica import replica
from asyncrl.extensions.replica.replica import FolderPlace, Replica, restore
from tests.buffer.factories import group, lease, ledger, tasks

LARGE = LARGE_BYTES // 26 + 100
"""Tokens of each of two trajectories that make a body large."""
TABLES = ("tasks", "counts", "bodies", "quarantine", "failures", "facts")


@pytest.fixture
def book(tmp_path):
    made = ledger(tmp_path / "first" / "ledger.sqlite", replica=FolderPlace(tmp_path / "second"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def first(tmp_path):
    (tmp_path / "first").mkdir()


def content(database):
    return {table: database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES}


def restored(tmp_path, book):
    """Restore what another node would have, were this one lost now, and compare it with the ledger."""
    shutil.rmtree(tmp_path / "third", ignore_errors=True)
    shutil.rmtree(tmp_path / "fourth", ignore_errors=True)
    shutil.copytree(tmp_path / "second", tmp_path / "third")
    found = restore(tmp_path / "third", tmp_path / "fourth" / "ledger.sqlite")
    assert found["lost"] == 0
    database = sqlite3.connect(tmp_path / "fourth" / "ledger.sqlite")
    assert content(database) == content(book._store)
    database.close()
    return found


def test_what_was_acknowledged_is_restored_whole_after_every_call(tmp_path, book, monkeypatch):
    monkeypatch.setattr(replica, "LONGEST_LOG_BYTES", 200_000)
    generation = tmp_path / "second" / "generation-000001" / "ledger.sqlite-wal"
    folded, longest = 0, 0
    for step in range(3):
        for length in (0, LARGE):
            one = lease(book)
            restored(tmp_path, book)
            book.put(group(one, length=length))
            restored(tmp_path, book)
        assert len(book.take(step).groups) == 2
        assert restored(tmp_path, book)["bodies"] == 1
        book.commit(step + 1)
        assert restored(tmp_path, book)["bodies"] == 0
        folded += generation.stat().st_size < longest
        longest = generation.stat().st_size
    assert folded, "the log was moved into the copy in between"


def add_and_fail(book):
    with book.batch():
        book.add_tasks(tasks(3000, start=100))
        raise ZeroDivisionError


def test_a_large_transaction_that_is_undone_does_not_reach_the_replica(tmp_path, book):
    # Larger than the cache, so that SQLite writes part of it to the log before it is undone.
    book._store.execute("PRAGMA cache_size=10")
    with pytest.raises(ZeroDivisionError):
        add_and_fail(book)
    assert (tmp_path / "first" / "ledger.sqlite-wal").stat().st_size > 300_000
    for _ in range(2):
        lease(book)
        assert sum(restored(tmp_path, book)["tasks"].values()) == 8


def test_a_ledger_goes_on_from_its_replica_elsewhere(tmp_path, book):
    sent = group(lease(book), length=LARGE)
    book.put(sent)
    settings = book.settings
    book.close()
    shutil.rmtree(tmp_path / "first")
    restore(tmp_path / "second", tmp_path / "other" / "ledger.sqlite")
    again = Ledger(
        tmp_path / "other" / "ledger.sqlite", settings, follower=Replica(FolderPlace(tmp_path / "second"))
    )
    assert again.put(sent).duplicate
    again.put(group(lease(again), length=LARGE))
    assert len(again.take(0).groups) == 2
    again.close()


def test_nothing_is_acknowledged_that_the_replica_does_not_take(tmp_path, book):
    second = book._store.follower
    kept = second.place._log
    with open("/dev/full", "wb", buffering=0) as full:
        second.place._log = full.fileno()
        with pytest.raises(StorageError, match="No space left on device; nothing is acknowledged without it"):
            lease(book)
    second.place._log = kept
    assert book.stats()["in_flight"] == 1
    book.pause(True)
    restored(tmp_path, book)


def test_a_replica_is_one_ledgers_and_never_behind_it(tmp_path, book):
    with pytest.raises(ConfigError, match="second: a buffer replicates to it; stop that one first"):
        restore(tmp_path / "second", tmp_path / "other.sqlite")
    settings, path = book.settings, tmp_path / "first" / "ledger.sqlite"
    shutil.copyfile(path, tmp_path / "earlier.sqlite")
    lease(book)
    book.close()
    with pytest.raises(ConfigError, match=r"is the replica of another ledger; give .* an empty folder"):
        Ledger(tmp_path / "new.sqlite", settings, follower=Replica(FolderPlace(tmp_path / "second")))
    with pytest.raises(ConfigError, match=r"is ahead of .*earlier.sqlite.* run: asyncrl restore"):
        Ledger(tmp_path / "earlier.sqlite", settings, follower=Replica(FolderPlace(tmp_path / "second")))
    with pytest.raises(ConfigError, match=r"ledger.sqlite: exists; move it away"):
        restore(tmp_path / "second", path)
    with pytest.raises(ConfigError, match="holds no replica of a ledger"):
        restore(tmp_path, tmp_path / "other.sqlite")
