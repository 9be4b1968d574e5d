"""Bytes of a ledger that a disk or a copy has changed are noticed when it is opened, and never believed."""

import random
import sqlite3

import pytest

from asyncrl.buffer.integrity import add_functions
from asyncrl.buffer.ledger import Ledger
from asyncrl.errors import ConfigError
from tests.buffer.factories import group, lease, ledger


@pytest.fixture
def path(tmp_path):
    """A ledger with tasks in every state."""
    path = tmp_path / "l.sqlite"
    book = ledger(path=path, count=12)
    for step in range(2):
        for one in [lease(book) for _ in range(2)]:
            book.put(group(one))
        assert book.take(step).groups
        book.commit(step + 1)
    for one in [lease(book) for _ in range(2)]:
        book.put(group(one))
    lease(book)
    book.close()
    return path


def reopened(path):
    book = ledger(path=path)
    book.close()


def changed(path, *statements):
    """Change the file as damage does: no trigger sees it."""
    db = sqlite3.connect(path)
    add_functions(db)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    for _, sql in triggers:
        db.execute(sql)
    db.commit()
    db.close()


def test_a_ledger_that_nothing_has_happened_to_is_opened_again_and_again(path):
    for _ in range(3):
        reopened(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tasks SET attempts = 2 WHERE seq = 1",
        "UPDATE tasks SET worker = 'x' WHERE state = 'ready'",
        "UPDATE tasks SET version = version + 1 WHERE state = 'ready'",
        "UPDATE tasks SET oldest = 0 WHERE state = 'ready'",
        "UPDATE tasks SET reward_sum = reward_sum + 1 WHERE state = 'trained'",
        "UPDATE tasks SET body = CAST(substr(body, 1, 20) || x'00' || substr(body, 22) AS BLOB) WHERE seq = 3",
        "UPDATE tasks SET id = 'other' WHERE seq = 3",
        "UPDATE digests SET value = value + 1 WHERE seq = 3",
        "DELETE FROM digests WHERE seq = 3",
    ],
)
def test_a_changed_row_is_noticed(path, statement):
    changed(path, statement)
    with pytest.raises(
        ConfigError, match=r"l\.sqlite: is damaged: rows of tasks differ from their digests \(numbers "
    ):
        reopened(path)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (
            "UPDATE bodies SET body = CAST(substr(body, 1, 50) || x'7f' || substr(body, 52) AS BLOB)",
            "bodies of groups differ",
        ),
        ("DELETE FROM tasks WHERE seq = 12", "rows of tasks are missing"),
        (
            "UPDATE counts SET tasks = tasks + 1 WHERE state = 'trained'",
            "counts of tasks differ from the tasks",
        ),
    ],
)
def test_so_are_a_changed_body_a_lost_row_and_a_wrong_count(path, statement, what):
    changed(path, statement)
    with pytest.raises(ConfigError, match=f"is damaged: {what}"):
        reopened(path)


SHOWN = ("trained", "ready", "dropped")


def opened(path):
    """Return why a ledger is refused, else "" and its counts."""
    try:
        book = ledger(path=path)
    except ConfigError as error:
        return str(error), {}
    found = book.stats()
    book.close()
    return "", found


def test_random_damage_is_refused_with_the_name_of_the_file_or_changes_nothing_that_counts(path):
    sound, rng = path.read_bytes(), random.Random(7)
    book = ledger(path=path)
    before = book.stats()
    book.close()
    refused = 0
    for _ in range(60):
        damaged = bytearray(sound)
        for _ in range(20):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        for rest in path.parent.glob("l.sqlite-*"):
            rest.unlink()
        path.write_bytes(damaged)
        why, found = opened(path)
        assert str(path) in why or [found[name] for name in SHOWN] == [before[name] for name in SHOWN]
        refused += bool(why)
    assert refused > 20


def test_the_digests_of_a_million_changes_cost_no_second_ledger(tmp_path):
    """A row has one digest, however often it is changed."""
    book = ledger(path=tmp_path / "l.sqlite", count=4)
    for _ in range(5):
        one = lease(book)
        book.release(one.id)
    assert book._store.row("SELECT COUNT(*) FROM digests") == book._store.row("SELECT COUNT(*) FROM tasks")
    assert isinstance(book, Ledger)
