"""One step from a checkpoint on two ranks (`tests.ranks`)."""

from __future__ import annotations

from pathlib import Path

import torch

from asyncrl.train.checkpoint.checkpointer import Checkpointer, newest_usable
from tests.train.one_step import make_engine, snapshot, step_once


def main(model: str, folder: str, stage: str) -> None:
    engine = make_engine(model, int(stage))
    found = newest_usable(Path(folder), at_most=10**6)
    assert found is not None and engine.num_ranks == 2
    Checkpointer(Path(folder), engine, model).load(found[1])
    step_once(engine)
    weights = snapshot(engine)
    if engine.rank == 0:
        torch.save(weights, Path(folder) / "weights.pt")
