"""The file of a poisoned step repeats it, with what was found then; another file is refused."""

from argparse import Namespace

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.play_again.command import run
from asyncrl.extensions.play_again.poison_replay import replay
from tests.train.factories import batch_of_groups
from tests.train.test_poison import Script, poisoned, train


def test_the_file_of_a_poisoned_group_shows_it_again(tiny_model, tmp_path, capsys):
    train(tiny_model, tmp_path, Script([*batch_of_groups()[:1], poisoned()]), "continue")
    file = tmp_path / "step-000000.safetensors"
    found = replay(file)
    assert list(found.report.left_out.values()) == list(found.recorded.values())
    assert (found.group_ids, list(found.recorded)) == (["g-t1"], ["g-t1"])
    assert run(Namespace(what=file, trajectory=None)) == 1
    assert "group g-t1: " in capsys.readouterr().out


def test_what_is_no_poison_file_is_refused_by_name(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"x\.safetensors: is no file of poisoned groups"):
        replay(tmp_path / "x.safetensors")
