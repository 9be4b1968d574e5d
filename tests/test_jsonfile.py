"""A JSON file is replaced whole or not at all."""

import json

import pytest

from asyncrl.jsonfile import write_json


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "state.json"
    write_json(path, {"step": 1})
    write_json(path, {"step": 2}, indent=2)
    assert path.read_text() == '{\n  "step": 2\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_value_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "state.json"
    write_json(path, {"step": 1})
    with pytest.raises(TypeError):
        write_json(path, {"step": object()})
    assert json.loads(path.read_text()) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "gone" / "state.json", {})
