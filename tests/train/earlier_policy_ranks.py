"""Scores tokens under an earlier version on every rank of ZeRO-3, and finds the trained weights unchanged.

Started by `two_ranks`, which fails where this does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.earlier_policy import earlier_policy, readable
from asyncrl.train.features.commitment_check import States
from asyncrl.train.features.logprob_check import Tolerance, compare
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.weights.files import write_weights
from tests.train.factories import batch_of_groups
from tests.train.one_step import make_engine, shared, snapshot, step_once


def main(model: str, folder: str) -> None:
    engine = make_engine(model, zero_stage=3)
    token_ids = torch.arange(5, 25).reshape(2, 10) + engine.rank
    mask = torch.ones_like(token_ids, dtype=torch.bool)
    mask[:, 0] = False
    expected = engine.outputs(token_ids, mask, 1.0)["logp"].clone()
    tensors = [(name, tensor.clone()) for name, tensor in engine.weights()]
    if engine.rank == 0:
        write_weights(folder, 2, tensors)
    dist.barrier()
    for _ in range(2):
        step_once(engine)
    before = {name: tensor.clone() for name, tensor in snapshot(engine).items()}
    trained = engine.outputs(token_ids, mask, 1.0)["logp"].clone()
    assert not torch.allclose(trained, expected, atol=1e-4)
    assert readable(engine, Path(folder), [1, 2]) == [2]
    with earlier_policy(engine, Path(folder), 2) as score:
        torch.testing.assert_close(score(token_ids, mask, 1.0)["logp"], expected, rtol=0, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(engine).items())
    torch.testing.assert_close(engine.outputs(token_ids, mask, 1.0)["logp"], trained, rtol=0, atol=0)
    with earlier_policy(engine, Path(folder), 1) as score:
        assert score is None
    share_states(engine)


def share_states(engine: TrainEngine) -> None:
    """The first rank gets the hidden states that each rank computes of its rows."""
    states: States = {}
    batch = shared(engine, build_step_batch(batch_of_groups(), 0, 0))
    compare(engine, batch, Tolerance(), StepSettings(1.0, 40, 1, horizon=64.0), states=states)
    if engine.rank:
        assert not states
    else:
        assert sorted(states) == list(range(batch.num_rows))
        assert all(not np.isnan(states[row]).any() for row in states)
    # All ranks compute every row here.
    for row, t in enumerate(build_step_batch(batch_of_groups(), 0, 0).trajectories):
        found = engine.outputs(
            torch.tensor(t.token_ids)[None].long(), torch.tensor(t.loss_mask)[None], 1.0, ("states",)
        )["states"]
        if not engine.rank:
            torch.testing.assert_close(
                torch.from_numpy(states[row]), found.detach().float(), rtol=0, atol=1e-5
            )
