"""Weight files: whole, checksummed, memory-mapped, and refused by name when anything differs."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from asyncrl.errors import InputError, UnavailableError
from asyncrl.weights import chunks, files
from asyncrl.weights.chunks import parts_checksum
from asyncrl.weights.files import HostCopies, read_weights, remove_older, verify_weights, write_weights


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
    assert written.checksum == parts_checksum(written.path)


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


@pytest.mark.parametrize("part_bytes", [8, 100, 2**26])
def test_each_byte_is_written_once_and_its_checksum_computed_meanwhile(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(chunks, "PART_BYTES", part_bytes)
    made = {
        "half": torch.arange(7, dtype=torch.bfloat16),
        "one": torch.tensor(3.5),
        "wide": torch.arange(30, dtype=torch.float64).reshape(5, 6),
        "none": torch.empty(0, 4),
        "bits": torch.tensor([True, False, True]),
    }
    sizes, pwrite = [], os.pwrite
    monkeypatch.setattr(files.os, "pwrite", lambda *call: sizes.append(len(call[1])) or pwrite(*call))
    with monkeypatch.context() as patch:
        # The file is not read again.
        patch.setattr(files, "parts_checksum", None)
        file = write_weights(tmp_path, 3, made.items())
    assert sum(sizes) == file.num_bytes == os.stat(file.path).st_size
    assert max(sizes) <= part_bytes
    assert file.checksum == parts_checksum(file.path)
    assert verify_weights(file) >= 0
    back = dict(read_weights(file.path))
    assert back.keys() == made.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in made.items())
    assert all(back[name].dtype == tensor.dtype for name, tensor in made.items())
    with safe_open(file.path, "pt") as opened:
        assert opened.metadata() == {"version": "00000003"}


def test_a_disk_without_room_for_all_of_a_file_is_an_error_that_leaves_nothing(small_disk):
    with pytest.raises(UnavailableError, match=r"cannot be written: .*No space"):
        write_weights(small_disk, 1, [("w", torch.zeros(300_000))])
    assert list(small_disk.iterdir()) == []


def test_copies_of_the_next_version_go_into_the_memory_of_those_before():
    host = HostCopies()
    weight, tied = torch.arange(6.0).reshape(2, 3), torch.ones(4)
    before: list[int] = []
    for version in range(3):
        weight += version
        found = host.of([("a", weight), ("b", tied), ("c", tied), ("d", weight.t())], always=True)
        assert set(found) == {"a", "b", "d"}
        assert torch.equal(found["a"], weight) and torch.equal(found["d"], weight.t())
        assert found["a"].data_ptr() != weight.data_ptr()
        if version:
            assert [found[name].data_ptr() for name in ("a", "b")] == before
        before = [found[name].data_ptr() for name in ("a", "b")]
    assert host.made == 2
    # One that has another shape or type gets other memory.
    host.of([("a", torch.zeros(3)), ("b", tied.double())], always=True)
    assert host.made == 4
    # Without being asked for, nothing is copied.
    assert host.of([("a", weight)])["a"].data_ptr() == weight.data_ptr()
