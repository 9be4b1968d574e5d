"""A delta turns one weight file into the next, byte for byte, and is not kept where it saves little."""

import numpy as np
import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.extensions.weight_deltas import files as module
from asyncrl.extensions.weight_deltas.files import apply_delta, write_delta
from asyncrl.weights.chunks import parts_checksum
from asyncrl.weights.files import write_weights

COUNT = 100_003


def changed(tensor, share, seed=1):
    """The tensor with a share of its elements moved by the smallest step there is."""
    moved = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed)) < share
    bits = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)
    return torch.where(moved, bits + 1, bits).view(tensor.dtype)


def written(folder, old, new):
    """Weight files of two versions, and the path of a third that has only its size."""
    before, after = (write_weights(folder, v, t.items()) for v, t in ((9, old), (10, new)))
    target = folder / "result"
    target.write_bytes(bytes(after.num_bytes))
    return before, after, target


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("part_bytes", [2**25, 4096])
def test_the_old_file_and_the_delta_make_the_new_file(tmp_path, monkeypatch, dtype, part_bytes):
    monkeypatch.setattr(module, "PART_BYTES", part_bytes)
    old = {"a": torch.randn(COUNT).to(dtype), "b": torch.zeros(7, 11, dtype=dtype)}
    new = {"a": changed(old["a"], 0.01), "b": old["b"]}
    before, after, target = written(tmp_path, old, new)
    found = write_delta(before.path, before.checksum, after.path, tmp_path / "d")
    assert found.base_checksum == before.checksum
    assert found.num_bytes == (tmp_path / "d").stat().st_size
    apply_delta(before.path, found.path, target)
    assert parts_checksum(target) == after.checksum


def test_a_hundredth_of_the_elements_takes_less_than_a_fortieth_of_the_bytes(tmp_path):
    old = {"a": torch.randn(1_000_000).bfloat16()}
    before, after, _ = written(tmp_path, old, {"a": changed(old["a"], 0.01)})
    assert write_delta(before.path, "", after.path, tmp_path / "d").num_bytes < after.num_bytes / 40


def test_equal_weights_have_an_empty_delta(tmp_path):
    old = {"a": torch.randn(COUNT)}
    before, after, target = written(tmp_path, old, old)
    found = write_delta(before.path, before.checksum, after.path, tmp_path / "d")
    assert found.num_bytes < 1000
    apply_delta(before.path, found.path, target)
    assert parts_checksum(target) == after.checksum


@pytest.mark.parametrize(
    "new", [{"a": torch.randn(COUNT)}, {"a": torch.zeros(COUNT + 1)}, {"b": torch.zeros(COUNT)}]
)
def test_what_saves_little_or_is_laid_out_differently_has_no_delta(tmp_path, new):
    before, after, _ = written(tmp_path, {"a": torch.zeros(COUNT)}, new)
    found = write_delta(before.path, before.checksum, after.path, tmp_path / "d")
    if "b" in new:
        # The header differs and is sent whole, the tensors do not.
        assert found.num_bytes < 1000
    else:
        assert found is None and not (tmp_path / "d").exists()


def test_a_delta_of_other_weights_or_a_torn_one_is_refused_by_name(tmp_path):
    old = {"a": torch.randn(COUNT)}
    before, after, target = written(tmp_path, old, {"a": changed(old["a"], 0.01)})
    found = write_delta(before.path, before.checksum, after.path, tmp_path / "d")
    other = write_weights(tmp_path, 3, [("a", torch.zeros(5))])
    with pytest.raises(InputError, match="d: made for weights that are laid out differently"):
        apply_delta(other.path, found.path, target)
    body = (tmp_path / "d").read_bytes()
    for torn in (body[:100], body[:-10], np.random.default_rng(0).bytes(len(body))):
        (tmp_path / "d").write_bytes(torn)
        with pytest.raises(InputError, match="/d: "):
            apply_delta(before.path, found.path, target)
