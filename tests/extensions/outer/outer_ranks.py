"""A run of two ranks (`tests.ranks`) that exchanges weights with a real service, which the test serves."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from asyncrl.config import parse_config
from asyncrl.extensions.outer.client import OuterClient
from asyncrl.extensions.outer.exchange import OuterExchange
from asyncrl.train.engine.full_state import gather_weights, set_weights
from tests.credentials import RUN
from tests.train.one_step import make_engine, snapshot, step_once


def main(model: str, url: str, folder: str) -> None:
    """Join late, train a step, exchange in fragments of eight bits; leave the weights of each rank after that."""
    settings = {"url": url, "members": 2, "member": 1, "every": 2, "fragments": 2, "bits": 8}
    config = parse_config(
        {
            "model": {"path": model},
            "env": {"name": "gridworld"},
            "train": {"num_steps": 2},
            "outer": settings,
        }
    )
    engine = make_engine(model, 3)
    client = OuterClient(config.outer, RUN.bearer("outer"), "b" * 32, "ranks") if engine.rank == 0 else None
    exchange = OuterExchange(config, client)
    assert exchange.join(engine)
    step_once(engine)
    names = [piece.name for piece in engine.pieces]
    # What the step left is not known to the other member.
    set_weights(engine, names, {name: one + 1 for name, one in gather_weights(engine, names).items()})
    metrics = exchange.after_step(engine, 2)
    assert bool(metrics) == (engine.rank == 0)
    exchange.leave()
    weights = {name: tensor.contiguous().to(torch.float32) for name, tensor in snapshot(engine).items()}
    save_file(weights, Path(folder) / f"rank-{engine.rank}.safetensors")
