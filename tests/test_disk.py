"""Disks that take nothing more, told apart from every other trouble. The full disk is a real one where mounting is
allowed."""

import errno
import subprocess

import pytest

from asyncrl.disk import disk_problem, unwritable
from asyncrl.errors import StorageError, UnavailableError


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


def test_a_disk_is_probed_and_nothing_is_left_on_it(small_disk, tmp_path):
    assert unwritable(tmp_path) == ""
    assert list(tmp_path.iterdir()) == [small_disk]
    assert unwritable(small_disk) == ""
    (small_disk / "large").write_bytes(bytes(900_000))
    assert unwritable(small_disk) == f"{small_disk}: No space left on device"
    assert [path.name for path in small_disk.iterdir()] == ["large"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert unwritable(small_disk) == f"{small_disk}: Read-only file system"
