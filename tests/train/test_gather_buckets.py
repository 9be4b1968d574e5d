"""What ZeRO-3 gathers at once stays below its bound, but for a tensor that is larger alone."""

import pytest
import torch
from torch import nn

from asyncrl.train.engine import deepspeed_engine
from asyncrl.train.engine.deepspeed_engine import gather_buckets


def parameter(numel):
    """A parameter of ZeRO-3, which holds none of its elements itself."""
    found = nn.Parameter(torch.empty(0))
    found.ds_shape = (numel,)
    return found


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ([1, 2, 3], [[1, 2], [3]]),
        ([4, 1], [[4], [1]]),
        ([9, 1, 1], [[9], [1, 1]]),
        ([1, 9, 1], [[1], [9], [1]]),
        ([], []),
    ],
)
def test_consecutive_parameters_share_a_bucket_up_to_the_bound(monkeypatch, sizes, buckets):
    monkeypatch.setattr(deepspeed_engine, "GATHERED_BYTES", 4 * 4)
    named = [(str(size), parameter(size)) for size in sizes]
    assert [[int(name) for name, _ in bucket] for bucket in gather_buckets(named)] == buckets
