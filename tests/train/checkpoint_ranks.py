"""Checkpoints of two ranks (`tests.ranks`), with one folder or with one for each, as on two machines."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from asyncrl.run.checkpoints import checkpoint_path
from asyncrl.train.checkpoint import checkpointer
from asyncrl.train.checkpoint.checkpoint_files import own_tensors
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.full_state import gather_weights, set_weights
from tests.train.one_step import make_engine, snapshot, step_once

WAYS = ("0", "1", "2", "3", "3-apart")
"""ZeRO stages; `apart` where the second rank does not see the first one's folder."""


def main(model: str, out: str) -> None:
    for way in WAYS:
        stage, _, apart = way.partition("-")
        engine = make_engine(model, int(stage))
        for _ in range(2):
            step_once(engine)
        _holds_its_part_alone(engine)
        folder = Path(out) / (way if engine.rank == 0 or not apart else "elsewhere")
        saver = Checkpointer(folder, engine, model)
        saver.save(2, {"count": 3})
        step_once(engine)
        saver.wait()
        engine.barrier()
        expected = snapshot(engine)
        again = make_engine(model, int(stage))
        Checkpointer(folder, again, model).load(checkpoint_path(folder, 2))
        step_once(again)
        found = snapshot(again)
        _sets_weights(again)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        if engine.rank == 0:
            save_file(
                {name: t.contiguous() for name, t in expected.items()}, Path(out) / way / "third.safetensors"
            )
    _fail_on_one_rank(saver, Path(out))


def _holds_its_part_alone(engine) -> None:
    total = 3 * sum(piece.whole_numel for piece in engine.pieces)
    own = sum(tensor.numel() for tensor in own_tensors(engine)[0].values())
    assert 0.4 * total < own < 0.6 * total


def _sets_weights(engine) -> None:
    """Give all parameters but the first other weights, which rank 0 alone has."""
    first, *names = (piece.name for piece in engine.pieces)
    before = gather_weights(engine, [first, *names])
    assert bool(before) == (engine.rank == 0)
    set_weights(engine, names, {name: one + 1 for name, one in before.items()})
    after = gather_weights(engine, [first, *names])
    model = snapshot(engine)
    for name, one in after.items():
        expected = before[name] + (name != first)
        assert torch.equal(one, expected) and torch.equal(model[name.removeprefix("model.")], expected)


def _fail_on_one_rank(saver: Checkpointer, out: Path) -> None:
    """Try a checkpoint for which the second rank's disk is full; leave what each rank says of it."""

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    rank, write = saver.engine.rank, checkpointer.save_file
    if rank == 1:
        checkpointer.save_file = full
    try:
        saver.save(3, {})
        saver._join()
    finally:
        checkpointer.save_file = write
    (out / f"error-{rank}").write_text(saver.error)
