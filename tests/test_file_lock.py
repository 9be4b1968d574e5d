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
