"""What a safetensors file holds is read from its header."""

import pytest
import torch
from safetensors.torch import save_file

from asyncrl.tensorfile import tensors_in


def test_types_shapes_and_places_are_those_of_the_file(tmp_path):
    tensors = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "file", metadata={"format": "pt"})
    found, data = tensors_in(tmp_path / "file")
    assert {name: (one["dtype"], one["shape"]) for name, one in found.items()} == {
        "a": ("F32", [2, 3]), "b": ("BF16", [4]),
    }  # fmt: skip
    start, end = found["a"]["data_offsets"]
    content = (tmp_path / "file").read_bytes()[data + start : data + end]
    assert content == tensors["a"].numpy().tobytes()


def test_what_is_no_such_file_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"not one at all")
    with pytest.raises(ValueError):
        tensors_in(tmp_path / "file")
