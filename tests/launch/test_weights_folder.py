"""Weights that do not fit where they are published are found out before anything starts."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.launch.models.weights_folder import check_room
from asyncrl.weights.folders import check_staged_room, published_bytes, weights_folder


def config(**engine):
    return parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, "engine": engine})


@pytest.fixture
def model(tmp_path):
    """A folder with a model of 100,000 elements in two files."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name, rows in (("model-1", 3), ("model-2", 7)):
        save_file(
            {f"{name}.w": torch.zeros(rows, 10_000, dtype=torch.bfloat16)}, folder / f"{name}.safetensors"
        )
    return folder


def test_the_published_size_follows_from_headers_and_the_type(model, tmp_path):
    assert published_bytes(model, "float32") == 400_000
    assert published_bytes(model, "bfloat16") == 200_000
    assert published_bytes(Path("hub/name"), "float32") == 0


def test_copies_that_do_not_fit_are_refused_with_the_key_that_moves_them(model, small_disk):
    folder = weights_folder(config(weights_dir=str(small_disk)), Path("runs/mine"))
    assert folder.parent == small_disk and folder.name.endswith("-mine")
    with pytest.raises(
        ConfigError, match=r"engine.weights_dir: .*/disk has 0.00 GiB free .* needs 0.00 GiB there, 3 copies"
    ):
        check_room(config(), str(model), folder)
    half = parse_config(
        {"model": {"path": "m", "dtype": "bfloat16"}, "env": {"name": "gridworld"}, "engine": {"count": 2}}
    )
    check_room(half, str(model), folder)
    # The engines of a machine share theirs.
    (small_disk / "of-another").write_bytes(bytes(100_000))
    with pytest.raises(ConfigError, match="5 copies"):
        check_room(
            half.model_copy(update={"engine": config(count=2, weight_transfer="collective").engine}),
            str(model),
            folder,
        )


def test_copies_that_do_not_fit_on_an_engines_machine_are_refused_there(model, small_disk):
    """200,000 bytes in bfloat16; two copies."""
    folder = small_disk / "asyncrl-run"
    folder.mkdir()
    recipe = parse_config(
        {
            "model": {"path": "m", "dtype": "bfloat16"},
            "env": {"name": "gridworld"},
            "engine": {"weight_transfer": "http", "count": 8},
        }
    )
    filled = small_disk / "of-another"
    with open(filled, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - 300_000)
    with pytest.raises(ConfigError, match=r"engine.weights_dir: .* has room for .* 2 copies of the weights"):
        check_staged_room(recipe, model, folder)
    # What its engines have already is shared by one that starts again.
    filled.unlink()
    with open(folder / "staged", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - 100_000)
    check_staged_room(recipe, model, folder)
    check_staged_room(config(), model, folder)


@pytest.mark.parametrize(
    ("dtype", "nodes", "copies"), [("float32", 1, 3 + 6), ("bfloat16", 2, 3 + 12), ("bfloat16", 4, 3 + 6)]
)
def test_checkpoints_in_memory_need_room_for_two_versions_of_float32_weights_and_moments(
    model, small_disk, dtype, nodes, copies
):
    """Of all ranks on one machine; of a machine's own and of those of the one before it on several."""
    run = parse_config(
        {
            "model": {"path": "m", "dtype": dtype},
            "env": {"name": "gridworld"},
            "train": {"ranks": nodes, "nodes": nodes, "memory_checkpoint_every": 1},
        }
    )
    with pytest.raises(
        ConfigError, match=f"there, {copies} copies .*, or set train.memory_checkpoint_every=0"
    ):
        check_room(run, str(model), weights_folder(config(weights_dir=str(small_disk)), Path("runs/mine")))


def test_shared_memory_is_the_default_where_there_is_one():
    assert str(weights_folder(config(), Path("x"))).startswith("/dev/shm/") == os.access("/dev/shm", os.W_OK)
