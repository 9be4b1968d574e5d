"""What an engine verifies and loads: its own copy before the trainer's file, made from a delta where there is one."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.extensions.weight_deltas.files import DELTA, write_delta
from asyncrl.weights.files import read_weights, write_weights
from asyncrl.weights.vllm_configured import hooks_of
from asyncrl.weights.vllm_served import Served


class Loading(Served):
    """An engine's policy that only reads what it would load."""

    def __init__(self, folder):
        super().__init__("main", str(folder), asyncio.Lock(), hooks_of({}))
        self.loaded = []

    async def _load(self, engine, file, *how):
        self.loaded.append((Path(file.path), dict(read_weights(file.path))["w"]))
        self.position.moved(file)
        return {}


@pytest.fixture
def versions(tmp_path):
    """Files of two versions; the second has a delta to the first."""
    tensors = [torch.zeros(5000), torch.zeros(5000)]
    tensors[1][7] = 1.0
    first, second = (write_weights(tmp_path, v, [("w", t)], epoch=1) for v, t in enumerate(tensors, 1))
    delta = write_delta(first.path, first.checksum, second.path, tmp_path / "weights-00000002.delta")
    return first, replace(second, forms={DELTA: delta}), tensors


def committed(policy, *files):
    async def scenario():
        for file in files:
            await policy.prepare(None, file)
            await policy.commit(None, file, "keep")

    asyncio.run(scenario())
    return policy.loaded[-1]


def test_the_next_version_is_made_from_the_loaded_one_and_its_delta(tmp_path, versions):
    first, second, tensors = versions
    Path(second.path).unlink()
    policy = Loading(tmp_path)
    path, loaded = committed(policy, first, second)
    assert path == policy.staging.path(second)
    assert torch.equal(loaded, tensors[1])


def test_an_engine_without_the_base_reads_the_whole_file(tmp_path, versions):
    _, second, tensors = versions
    path, loaded = committed(Loading(tmp_path), second)
    assert (str(path), torch.equal(loaded, tensors[1])) == (second.path, True)


@pytest.mark.parametrize("damage", [b"", b"\0" * 200])
def test_a_damaged_delta_is_not_used(tmp_path, versions, damage):
    first, second, tensors = versions
    Path(second.forms[DELTA].path).write_bytes(damage)
    path, loaded = committed(Loading(tmp_path), first, second)
    assert (str(path), torch.equal(loaded, tensors[1])) == (second.path, True)


def test_what_was_received_is_verified_and_goes_before_the_file(tmp_path, versions):
    first, second, tensors = versions
    policy = Loading(tmp_path)
    policy.staging.make_room(first).write_bytes(Path(first.path).read_bytes())
    path, _ = committed(policy, first)
    assert path == policy.staging.path(first)
    policy.staging.make_room(second)
    path, loaded = committed(policy, replace(second, forms={}))
    assert (str(path), torch.equal(loaded, tensors[1])) == (second.path, True)
    assert policy.staging.local(first) is None


def test_a_file_outside_the_folder_is_refused_also_as_a_delta(tmp_path, versions):
    first, second, _ = versions
    policy = Loading(tmp_path / "own")
    with pytest.raises(InputError, match="path: must lie below the folder of weights"):
        asyncio.run(policy.prepare(None, second))
    policy.position.moved(first)
    with pytest.raises(InputError, match="path: must lie below the folder of weights"):
        asyncio.run(policy.prepare(None, second))
