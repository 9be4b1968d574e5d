"""A file's lock is one process's until it is closed."""

import os

import pytest

from asyncrl.errors import ConfigError
from asyncrl.file_lock import own


def test_a_second_owner_is_told_why_and_the_next_one_has_it_when_the_first_is_gone(tmp_path):
    first = own(tmp_path / "lock", "taken")
    with pytest.raises(ConfigError, match=r"^taken$"):
        own(tmp_path / "lock", "taken")
    os.close(first)
    os.close(own(tmp_path / "lock", "taken"))


def test_a_file_that_is_added_to_is_locked_itself(tmp_path):
    (tmp_path / "lines").write_bytes(b"one\n")
    lock = own(tmp_path / "lines", "taken", os.O_APPEND, 0o644)
    os.write(lock, b"two\n")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"
    os.close(lock)
    os.close(own(tmp_path / "new", "taken", os.O_APPEND, 0o640))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
