"""A trainer whose states went to the host and back trains and saves as one that kept them.

Both places are one on a CPU: what is tested is that DeepSpeed's links between weights, float32 copies and moments
survive.
"""

import pytest
import torch

from asyncrl.extensions.offload.memory import put_on_host, to_device, to_host
from asyncrl.train.engine.full_state import gather_state
from asyncrl.weights.files import HostCopies
from tests.train.one_step import make_engine, snapshot, step_once


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_states_that_were_away_train_and_are_saved_as_those_that_stayed(tiny_model, zero_stage, dtype):
    kept, moved = (make_engine(tiny_model, zero_stage, dtype) for _ in range(2))
    for step in range(3):
        step_once(kept)
        step_once(moved)
        to_host(moved)
        # What is published meanwhile are the new weights.
        for name, tensor in snapshot(kept).items():
            torch.testing.assert_close(snapshot(moved)[name], tensor, atol=0, rtol=0)
        to_host(moved)
        to_device(moved)
        wanted, found = gather_state(kept), gather_state(moved)
        assert set(found) == set(wanted) and float(found["adam_step"]) == step + 1
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, atol=0, rtol=0)
    to_device(moved)


def test_states_go_into_the_memory_of_the_turn_before():
    """Pages that are fresh, or pinned anew, take several times as long. A GPU is played by memory of its own."""
    states, host = [torch.arange(5.0), torch.ones(3, dtype=torch.float64), torch.empty(0)], HostCopies()
    places = []
    for turn in range(3):
        for tensor in states:
            tensor.data = (tensor.data + turn).clone()
        put_on_host(states, host, always=True)
        places.append([tensor.data_ptr() for tensor in states])
    assert torch.equal(states[0], torch.arange(5.0) + 3) and torch.equal(
        states[1], torch.full((3,), 4.0).double()
    )
    assert places[0] == places[1] == places[2]
    assert host.made == 3


def test_states_may_leave_before_the_first_step(tiny_model):
    engine = make_engine(tiny_model, 1)
    to_host(engine)
    to_device(engine)
    assert step_once(engine).num_tokens > 0


def test_states_that_are_offloaded_always_stay_on_the_host(tiny_model, monkeypatch):
    engine = make_engine(tiny_model, 3, offload="optimizer")
    step_once(engine)
    monkeypatch.setattr(engine, "device", torch.device("meta"))
    to_host(engine)
    to_device(engine)
    flats = engine.engine.optimizer.fp32_partitioned_groups_flat
    moments = [t for flat in flats for t in engine.optimizer.state[flat].values()]
    assert {tensor.device.type for tensor in (*flats, *moments)} == {"cpu"}
