"""Two ranks that have a part of each layer (`tests.ranks`)."""

from __future__ import annotations

from pathlib import Path

import torch
from deepspeed.utils import groups
from safetensors.torch import save_file

from asyncrl.run.checkpoints import checkpoint_path
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.full_state import gather_state
from tests.train.one_step import make_engine, save_policy, snapshot, step_once

WAYS = ((1, "float32"), (2, "float32"), (1, "bfloat16"))


def main(model: str, out: str) -> None:
    """Leave weights and optimizer states after two steps, and the policy; resume and compare."""
    try:
        _train_and_resume(model, out)
    finally:
        # DeepSpeed would take later engines of these processes for divided ones, too.
        groups._release_process_group_references()


def _train_and_resume(model: str, out: str) -> None:
    for stage, dtype in WAYS:
        folder = Path(out) / f"{stage}-{dtype}"
        engine = make_engine(model, stage, dtype, tensor_parallel=2)
        assert (engine.num_shares, engine.share) == (1, 0)
        norms = [step_once(engine, micro_batch_tokens=40).metrics["grad_norm"] for _ in range(2)]
        weights, state = snapshot(engine), gather_state(engine)
        saver = Checkpointer(folder, engine, model)
        saver.save(2, {"count": 3})
        saver.wait()
        save_policy(engine, folder / "policy", model)
        if engine.rank == 0:
            save_file(
                {name: tensor.contiguous() for name, tensor in weights.items()},
                folder / "weights.safetensors",
            )
            save_file(
                {name: tensor.contiguous() for name, tensor in state.items()}, folder / "state.safetensors"
            )
            save_file({"norms": torch.tensor(norms)}, folder / "norms.safetensors")
        step_once(engine)
        expected = snapshot(engine)
        again = make_engine(model, stage, dtype, tensor_parallel=2)
        Checkpointer(folder, again, model).load(checkpoint_path(folder, 2))
        step_once(again)
        found = snapshot(again)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
