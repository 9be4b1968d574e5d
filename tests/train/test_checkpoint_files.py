"""A range of elements is read from whichever ranks' files hold it."""

import pytest
import torch
from safetensors.torch import save_file

from asyncrl.errors import InputError
from asyncrl.run.checkpoints import state_file, state_files
from asyncrl.train.checkpoint.checkpoint_files import KeptState, SentTensors, StateFiles

PARTS = (
    {
        "weight/a@0": torch.arange(5.0),
        "exp_avg/b": torch.arange(12.0).view(3, 4),
        "adam_step": torch.tensor(7.0),
    },
    {"weight/a@5": torch.arange(5.0, 12.0), "critic:weight/a": torch.full((2, 2), 3.0)},
)
SHAPES = {"weight/a": [3, 4], "exp_avg/b": [3, 4], "critic:weight/a": [2, 2]}


@pytest.fixture(params=["read", "sent"])
def stored(request, tmp_path):
    for rank, part in enumerate(PARTS):
        save_file(part, tmp_path / state_file(rank))
    assert len(state_files(tmp_path)) == 2
    if request.param == "read":
        return StateFiles(tmp_path)
    tensors = {name: tensor for part in PARTS for name, tensor in part.items()}
    return SentTensors(tensors, {name: tuple(tensor.shape) for name, tensor in tensors.items()})


def test_a_range_may_lie_in_two_files_or_in_the_rows_of_a_whole_tensor(stored):
    state = KeptState(stored, SHAPES)
    assert state.num_steps() == 7
    assert state.shape("weight/a") == (3, 4) and state.shape("weight/none") is None
    assert state.read("weight/a", 3, 6).tolist() == [3, 4, 5, 6, 7, 8]
    assert state.read("weight/a", 0, 12).tolist() == list(range(12))
    assert state.read("exp_avg/b", 5, 6).tolist() == [5, 6, 7, 8, 9, 10]
    other = KeptState(stored, SHAPES, "critic:")
    assert other.num_steps() is None
    assert other.read("weight/a", 1, 2).tolist() == [3, 3]


def test_elements_that_no_file_holds_are_named(tmp_path):
    save_file(PARTS[0], tmp_path / state_file(0))
    with pytest.raises(InputError, match=r"4 elements of weight/a are missing"):
        KeptState(StateFiles(tmp_path), SHAPES).read("weight/a", 3, 6)


def test_a_checkpoint_of_whole_tensors_needs_no_list_of_shapes(stored):
    assert KeptState(stored, {}).shape("exp_avg/b") == (3, 4)
