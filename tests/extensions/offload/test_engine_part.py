"""What `train.offload` keeps in files of a folder is trained as what is in memory is."""

import resource

import pytest
import torch

from asyncrl.config import TrainConfig, parse_config
from asyncrl.errors import ConfigError, StorageError
from asyncrl.extensions.offload.engine_part import OffloadFiles
from asyncrl.train.engine.full_state import WholeTensors, gather_state, load_state
from tests.extensions.other_optimizers.test_optimizers import take_steps
from tests.train.one_step import make_engine


def files_mapped(folder):
    """Address ranges of this process that are files of a folder."""
    with open("/proc/self/maps") as lines:
        mine = [line.split()[0].split("-") for line in lines if str(folder) in line]
    return [(int(low, 16), int(high, 16)) for low, high in mine]


def in_files(tensors, folder):
    ranges = files_mapped(folder)
    return [any(low <= tensor.data_ptr() < high for low, high in ranges) for tensor in tensors]


def states(engine):
    flats = engine.engine.optimizer.fp32_partitioned_groups_flat
    moments = [t for flat in flats for t in engine.optimizer.state[flat].values() if t.ndim]
    assert sum(map(len, (engine.optimizer.state[flat] for flat in flats))) == len(flats) + len(moments)
    return [*flats, *(flat.grad for flat in flats), *moments]


RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}
WAYS = [
    ("float32", {"offload": "optimizer"}),
    ("bfloat16", {"offload": "parameters"}),
    ("bfloat16", {"offload": "parameters", "optimizer": "muon"}),
]


@pytest.mark.parametrize(("dtype", "ways"), WAYS)
def test_weights_and_moments_in_files_are_those_in_memory_bit_by_bit(tiny_model, tmp_path, dtype, ways):
    usual = take_steps(make_engine(tiny_model, 3, dtype, **ways))
    engine = make_engine(tiny_model, 3, dtype, offload_folder=str(tmp_path / "nvme"), **ways)

    found = take_steps(engine)

    assert found.keys() == usual.keys() and all(torch.equal(found[name], usual[name]) for name in usual)
    assert all(in_files(states(engine), tmp_path))
    shards = [parameter.ds_tensor for parameter in engine.engine.module.parameters()]
    assert all(in_files(shards, tmp_path))
    assert not list((tmp_path / "nvme").iterdir())


def test_what_is_loaded_goes_on_in_files(tiny_model, tmp_path):
    engine = make_engine(tiny_model, 3, offload="optimizer", offload_folder=str(tmp_path))
    take_steps(engine, 1)
    kept = {name: tensor.clone() for name, tensor in gather_state(engine).items()}
    expected = take_steps(engine, 1)

    load_state(engine, WholeTensors(kept))
    found = take_steps(engine, 1)

    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert all(in_files(states(engine), tmp_path))


def test_a_disk_without_room_is_named_before_anything_is_trained(tiny_model, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**10, hard))
    try:
        with pytest.raises(
            StorageError, match=rf"train.offload_folder: no room for .* MiB more in {tmp_path}"
        ):
            make_engine(tiny_model, 3, offload="optimizer", offload_folder=str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"train\.offload_folder: .*file"):
        OffloadFiles(tmp_path / "file" / "nvme")


def test_a_folder_without_offloading_is_refused():
    with pytest.raises(ConfigError, match=r"train\.offload must be 'optimizer' or 'parameters'"):
        parse_config(RECIPE | {"train": {"offload_folder": "nvme"}})
    assert TrainConfig(offload_folder="nvme", offload="optimizer", zero_stage=3).offload_folder == "nvme"
