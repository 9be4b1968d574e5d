"""Formats of data sets are found by name, and those of known sets are all there."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.table import by_name
from asyncrl.rows.formats import reader_of
from asyncrl.rows.known_sets import known_sets


def test_a_row_is_read_in_its_format():
    read = reader_of("mbpp")({"text": "Write add.", "test_list": ["assert add(1, 2) == 3"]})
    assert read["statement"] == "Write add.\n\nIt must pass this test:\n```python\nassert add(1, 2) == 3\n```"


def test_an_unknown_format_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r"unknown format 'none'; allowed: .*humaneval.*mbpp"):
        reader_of("none")


def test_the_formats_of_known_sets_are_there():
    assert {found.format for found in known_sets().values() if found.format} <= set(by_name("data_formats"))
