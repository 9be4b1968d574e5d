"""Ways to train a model are parts of a table: a section asks for them, and they state their settings and ranks."""

import math

import pytest
import torch
from torch import nn

from asyncrl.config import TrainConfig
from asyncrl.train.engine.deepspeed_engine import deepspeed_config
from asyncrl.train.engine.engine_parts import PARTS, EnginePart, Layout, layout_of, parts_of


def names(train):
    return [type(part).__name__ for part in parts_of(train)]


@pytest.mark.parametrize(
    ("train", "parts", "ranks"),
    [
        ({}, [], 1),
        ({"sequence_parallel": 2}, ["SequenceParallel"], 2),
        ({"sequence_parallel": 2, "tensor_parallel": 2}, ["SequenceParallel", "TensorParallel"], 4),
        ({"tensor_parallel": 2}, ["TensorParallel"], 2),
        ({"offload": "optimizer", "zero_stage": 2}, ["Offloaded"], 1),
    ],
)
def test_a_section_has_the_parts_that_it_asks_for_and_their_ranks_compute_rows_together(train, parts, ranks):
    section = TrainConfig(**train)
    assert names(section) == parts
    assert math.prod(part.ranks for part in parts_of(section)) == ranks


def test_every_part_of_the_table_is_one():
    assert all(issubclass(row.load(), EnginePart) for row in PARTS)


def test_settings_of_a_part_join_those_that_every_engine_has():
    settings = deepspeed_config(TrainConfig(offload="parameters", zero_stage=3), "bfloat16", 1000)
    zero = settings["zero_optimization"]
    assert zero["stage"] == 3 and zero["reduce_bucket_size"] == 1000
    assert (
        zero["offload_optimizer"]
        == zero["offload_param"]
        == {
            "device": "cpu",
            "pin_memory": torch.cuda.is_available(),
        }
    )
    assert "tensor_parallel" not in settings
    plain = deepspeed_config(TrainConfig(), "bfloat16", 1000)["zero_optimization"]
    assert not [key for key in plain if key.startswith("offload")]
    divided = deepspeed_config(TrainConfig(tensor_parallel=2), "bfloat16", 1000)
    assert divided["tensor_parallel"]["autotp_size"] == 2


def test_without_a_part_that_moves_them_every_rank_has_whole_parameters():
    linear = nn.Linear(2, 3)
    layout = layout_of(parts_of(TrainConfig(sequence_parallel=2)), linear)
    assert type(layout) is Layout and layout.ranks == 1
    assert layout.part(linear.weight) is None
    assert layout.whole(linear.weight, linear.weight) is linear.weight
    assert layout.whole_shape(linear.weight) == (3, 2)
    assert layout_of(parts_of(TrainConfig(tensor_parallel=4)), linear).ranks == 4
