"""What a run's ledger shows, read beside the buffer that writes it."""

import sqlite3

from asyncrl.buffer.integrity import add_functions
from asyncrl.run.ledger_view import read_ledger
from tests.run.folders import make_run


def test_the_ledger_tells_groups_by_state_and_failures_with_their_first_error(tmp_path):
    folder = make_run(tmp_path / "run")
    with sqlite3.connect(folder / "ledger.sqlite") as database:
        add_functions(database)
        database.execute("INSERT INTO failures VALUES ('environment', 3, 1, 'first traceback', 'newest')")
        database.execute("UPDATE tasks SET state = 'dropped', reason = 'no signal' WHERE seq = 1")
    ledger = read_ledger(folder)
    assert ledger["failures"] == [
        {"failure": "environment", "episodes": 3, "groups": 1, "first": "first traceback", "newest": "newest"}
    ]
    assert ledger["dropped"] == [{"reason": "no signal", "groups": 1}]
    assert {row["state"]: row["groups"] for row in ledger["groups"]} == {"pending": 1, "dropped": 1}


def test_a_run_without_a_ledger_or_with_a_damaged_one_has_no_counts(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "ledger.sqlite").write_bytes(b"no database" * 100)
    assert read_ledger(folder)["failures"] == []
    (folder / "ledger.sqlite").unlink()
    assert read_ledger(folder)["groups"] == []
