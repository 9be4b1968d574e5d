"""Disks that take nothing more, told apart from every other trouble. The full disk is a real one where mounting is
allowed."""

import errno
import sqlite3
import subprocess

import pytest

from asyncrl.disk import as_told, disk_problem, outage, unwritable
from asyncrl.errors import InputError, OutageError, StorageError, UnavailableError


def caused(error, cause):
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device", "/runs/a/metrics.jsonl")


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        caused(RuntimeError("not written"), FULL),
        ExceptionGroup("two of three", [ValueError("x"), caused(KeyError("y"), FULL)]),
    ],
)
def test_a_full_disk_is_found_among_causes_and_groups(error):
    assert disk_problem(error) == "[Errno 28] No space left on device: '/runs/a/metrics.jsonl'"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "[Errno 30] Read-only file system"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "[Errno 122] Disk quota exceeded"),
        (Exception("I/O error: no room (os error 28)"), "I/O error: no room (os error 28)"),
        (StorageError("ledger: database or disk is full"), "ledger: database or disk is full"),
        (UnavailableError("ledger: database is locked"), ""),
        (OSError(errno.ENOENT, "No such file"), ""),
        (Exception("file not found (os error 2)"), ""),
    ],
)
def test_only_what_a_disk_refuses_is_a_problem_of_the_disk(error, expected):
    assert disk_problem(error) == expected


def of_database(code):
    error = sqlite3.OperationalError("told by SQLite")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, StorageError),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StorageError),
        (of_database(sqlite3.SQLITE_FULL), StorageError),
        (StorageError("ledger: database or disk is full"), StorageError),
        (OSError(errno.EIO, "Input/output error"), OutageError),
        (OSError(errno.EMFILE, "Too many open files"), OutageError),
        (OSError(errno.EFBIG, "File too large"), OutageError),
        (MemoryError(), OutageError),
        (of_database(sqlite3.SQLITE_IOERR | 3 << 8), OutageError),
        (of_database(sqlite3.SQLITE_BUSY), OutageError),
        (of_database(sqlite3.SQLITE_CANTOPEN), OutageError),
        (of_database(sqlite3.SQLITE_ERROR), None),
        (of_database(sqlite3.SQLITE_CORRUPT), None),
        (OSError(errno.ENOENT, "No such file"), None),
        (UnavailableError("full of sessions"), None),
        (InputError("reward: must be a number"), None),
        (KeyError("reward"), None),
    ],
)
def test_what_the_machine_lacks_is_an_outage_and_what_a_request_or_a_bug_does_is_none(error, expected):
    assert outage(error) is expected


def test_an_outage_is_told_with_its_cause_and_a_bug_stays_one():
    told = as_told(OSError(errno.EIO, "Input/output error"))
    assert (type(told), str(told)) == (OutageError, "OSError: [Errno 5] Input/output error")
    refused = InputError("reward: must be a number")
    assert as_told(refused) is refused
    with pytest.raises(FileNotFoundError):
        as_told(FileNotFoundError(errno.ENOENT, "No such file"))


def test_a_database_on_a_disk_that_has_become_read_only_is_told_apart_from_one_that_fails(small_disk):
    assert outage(of_database(sqlite3.SQLITE_IOERR), small_disk) is OutageError
    (small_disk / "large").write_bytes(bytes(900_000))
    assert outage(of_database(sqlite3.SQLITE_IOERR), small_disk) is StorageError


def test_a_disk_is_probed_and_nothing_is_left_on_it(small_disk, tmp_path):
    assert unwritable(tmp_path) == ""
    assert list(tmp_path.iterdir()) == [small_disk]
    assert unwritable(small_disk) == ""
    (small_disk / "large").write_bytes(bytes(900_000))
    assert unwritable(small_disk) == f"{small_disk}: No space left on device"
    assert [path.name for path in small_disk.iterdir()] == ["large"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert unwritable(small_disk) == f"{small_disk}: Read-only file system"
