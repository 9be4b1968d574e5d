"""Weight files: whole, checksummed, memory-mapped, and refused by name when anything differs."""

import dataclasses
from pathlib import Path

import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.weights.chunks import file_checksum
from asyncrl.weights.files import read_weights, remove_older, verify_weights, write_weights


def tensors():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator)
    return {"a.weight": weight, "b.weight": torch.randn(5, generator=generator), "tied.weight": weight}


@pytest.fixture
def written(tmp_path):
    return write_weights(tmp_path / "weights", 7, tensors().items())


def test_weights_come_back_equal_and_shared_storage_is_stored_once(written):
    back = dict(read_weights(written.path))
    assert set(back) == {"a.weight", "b.weight"}
    assert all(torch.equal(tensor, tensors()[name]) for name, tensor in back.items())


def test_slices_and_transposes_are_written_as_they_look(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    file = write_weights(tmp_path, 1, [("t", base.t())])
    assert torch.equal(dict(read_weights(file.path))["t"], base.t())


def test_a_written_file_is_verified_and_leaves_no_partial_one(written):
    assert verify_weights(written) >= 0
    assert written.version == 7
    assert [p.name for p in Path(written.path).parent.iterdir()] == ["weights-00000007.safetensors"]
    assert written.checksum == file_checksum(written.path)


def test_one_flipped_bit_is_noticed(written):
    path = Path(written.path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"version 7: .* has checksum .*, expected {written.checksum}"):
        verify_weights(written)


@pytest.mark.parametrize("cut", [1, 50, 10**9])
def test_a_torn_file_is_refused_by_its_size(written, cut):
    path = Path(written.path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=f"bytes, expected {written.num_bytes}"):
        verify_weights(written)


def test_an_empty_file_announced_as_such_still_fails_its_checksum(written):
    Path(written.path).write_bytes(b"")
    with pytest.raises(InputError, match="has checksum"):
        verify_weights(dataclasses.replace(written, num_bytes=0))


def test_a_missing_file_is_refused_by_path(written):
    gone = dataclasses.replace(written, path=written.path + ".gone")
    with pytest.raises(InputError, match=r"version 7: cannot read .*\.gone"):
        verify_weights(gone)


def test_older_versions_and_partial_files_are_removed_and_nothing_else(tmp_path):
    for version in (1, 2, 3):
        write_weights(tmp_path, version, tensors().items())
    (tmp_path / "weights-00000009.partial-1").touch()
    (tmp_path / "notes.txt").touch()
    remove_older(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "weights-00000003.safetensors"]
