"""The file in the server's folder."""

import sqlite3

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.tinker.database import FILE, Database
from asyncrl.extensions.tinker.ledger import Ledger

OLD = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, created REAL NOT NULL, seen REAL NOT NULL, about TEXT NOT NULL);
CREATE TABLE policies (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, settings TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    applied INTEGER NOT NULL, about TEXT
);
INSERT INTO sessions VALUES ('s', 1.0, 2.0, '{}');
INSERT INTO policies VALUES ('s:train:0', 's', '{"rank": 4}', 1.0, 2.0, 3, 'null');
"""


def test_a_folder_of_an_earlier_server_gets_the_columns_that_it_lacks(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as database:
        database.executescript(OLD)
    for _ in range(2):
        ledger = Ledger(tmp_path)
        found = ledger.policy("s:train:0")
        assert (found.settings, found.applied, found.removed) == ({"rank": 4}, 3, None)
        assert ledger.session("s")["finished"] is None
        ledger.close()


def test_a_folder_is_one_servers(tmp_path):
    first = Database(tmp_path)
    with pytest.raises(ConfigError, match="another server has it; give this one a folder of its own"):
        Database(tmp_path)
    first.close()
    Database(tmp_path).close()


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b"x" * 4096)
    with pytest.raises(ConfigError, match="cannot be the server's folder"):
        Database(tmp_path)
