"""Where an engine stands: it catches up before it serves, and never goes back for a trainer that is gone."""

import dataclasses
import json

import pytest
import torch

from asyncrl.errors import ConflictError, InputError
from asyncrl.weights.files import write_weights
from asyncrl.weights.position import Position, read_committed, weight_file_from_json, write_committed


def written(folder, version, epoch=1):
    return write_weights(folder, version, [("w", torch.full((2,), float(version)))], epoch)


def test_an_engine_of_no_run_has_nothing_to_catch_up_with():
    assert Position("", 0).missed() is None


def test_an_engine_that_starts_with_the_run_has_missed_nothing(tmp_path):
    position = Position(str(tmp_path), 0)
    assert position.missed() is None
    write_committed(tmp_path, written(tmp_path, 1))
    assert position.missed() is None


def test_an_engine_that_starts_later_must_load_the_committed_version_once(tmp_path):
    file = written(tmp_path, 5)
    write_committed(tmp_path, file)
    position = Position(str(tmp_path), 0)
    assert position.missed() == file
    position.moved(file)
    assert (position.missed(), position.version) == (None, 5)


def test_an_engine_that_got_a_commit_first_has_caught_up(tmp_path):
    write_committed(tmp_path, written(tmp_path, 5))
    position = Position(str(tmp_path), 0)
    position.moved(written(tmp_path, 6))
    assert position.missed() is None


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "committed.json").write_text("{")
    with pytest.raises(InputError, match=r"committed\.json: JSONDecodeError"):
        read_committed(tmp_path)


def test_a_record_comes_back_equal(tmp_path):
    file = written(tmp_path, 3, epoch=2)
    write_committed(tmp_path, file)
    assert read_committed(tmp_path) == file == weight_file_from_json(json.loads(json.dumps(file.to_json())))
    assert read_committed(tmp_path / "nowhere") is None


def test_the_epoch_is_that_of_the_newest_weights(tmp_path):
    position = Position(str(tmp_path), 0)
    assert position.epoch == 0
    position.moved(written(tmp_path, 4, epoch=2))
    assert position.epoch == 2
    position.moved(written(tmp_path, 5, epoch=3))
    assert position.epoch == 3


def test_commits_follow_each_other_and_only_a_new_trainer_may_go_back(tmp_path):
    position = Position(str(tmp_path), 0)
    fourth, fifth = written(tmp_path, 4), written(tmp_path, 5)
    assert not position.repeats(fifth)
    position.moved(fifth)
    assert position.repeats(fifth)
    with pytest.raises(ConflictError, match="version 4, epoch 1, come after version 5, epoch 1"):
        position.repeats(fourth)
    again = dataclasses.replace(fourth, epoch=2)
    assert not position.repeats(again)
    position.moved(again)
    with pytest.raises(ConflictError):
        position.repeats(written(tmp_path, 6, epoch=1))
