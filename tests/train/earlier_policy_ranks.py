"""Scores tokens under an earlier version on every rank of ZeRO-3, and finds the trained weights unchanged.

Started by `two_ranks`, which fails where this does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.earlier_policy import earlier_policy, readable
from asyncrl.train.features.logprob_check import Computed, Tolerance, compare
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
    keep_shares(engine, Path(folder), trained)
    share_states(engine)


class CountedCopies(TorchDispatchMode):
    """Counts what is copied into tensors, in bytes, and refuses what gathers whole parameters."""

    copied = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            self.copied += args[1].numel() * args[1].element_size()
        return func(*args, **(kwargs or {}))


def keep_shares(engine: TrainEngine, folder: Path, logp_3: torch.Tensor) -> None:
    """A rank's share is kept from step to step: no file is read, nothing is gathered but in the forward pass itself."""
    token_ids = torch.arange(5, 25).reshape(2, 10) + engine.rank
    mask = torch.ones_like(token_ids, dtype=torch.bool)
    mask[:, 0] = False
    whole = sum(tensor.numel() * tensor.element_size() for _, tensor in engine.weights())
    # Shares are filled up to be equal.
    share = 1.05 * whole / engine.num_ranks
    with CountedCopies() as counted:
        engine.kept_shares.keep(3)
        engine.kept_shares.keep(3)
    assert 0.9 * share < counted.copied <= share
    expected = logp_3
    for version in (3, 4):
        step_once(engine)
        assert readable(engine, folder, [1, version]) == [version]
        before = snapshot(engine)
        trained = engine.outputs(token_ids, mask, 1.0)["logp"].clone()
        with CountedCopies() as counted, earlier_policy(engine, folder, version) as score:
            there = counted.copied
            found = score(token_ids, mask, 1.0)["logp"].clone()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert not torch.allclose(found, trained, atol=1e-4)
        # The share of the version in, that of the trained weights out; and this one in again when it is closed.
        assert 1.8 * share < there <= 2.2 * share
        assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(engine).items())
        torch.testing.assert_close(engine.outputs(token_ids, mask, 1.0)["logp"], trained, rtol=0, atol=0)
        with CountedCopies() as counted:
            # What the model has was copied when the version before took its place.
            engine.kept_shares.keep(version + 1)
        assert counted.copied == 0
        expected = trained


def share_states(engine: TrainEngine) -> None:
    """The first rank gets the hidden states that each rank computes of its rows."""
    states: Computed = {}
    batch = shared(engine, build_step_batch(batch_of_groups(), 0, 0))
    compare(engine, batch, Tolerance(), StepSettings(1.0, 40, 1, horizon=64.0), outputs={"states": states})
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
