"""Steps of optimizers on two ranks (`tests.ranks`)."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from tests.extensions.other_optimizers.test_optimizers import take_steps
from tests.train.one_step import make_engine


def main(model: str, folder: str) -> None:
    """Leave the weights after steps of Muon under each ZeRO stage."""
    for stage in range(4):
        engine = make_engine(model, stage, optimizer="muon")
        weights = {name: tensor.contiguous() for name, tensor in take_steps(engine).items()}
        if engine.rank == 0:
            save_file(weights, Path(folder) / f"muon-{stage}.safetensors")
