"""Two steps of an adapter, in process or on two ranks (`tests.ranks`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.train.one_step import Learner, snapshot

LORA = {"rank": 4, "alpha": 8}
ALGO = {"preset": "grpo", "kl": {"coef": 0.1}}


def adapted(model: str, zero_stage: int = 0, **sections: Any) -> Learner:
    """A learner whose policy has an adapter and whose objective reads the reference."""
    return Learner(model, sections.pop("algo", ALGO), zero_stage, **{"lora": LORA, **sections})


def two_steps(model: str, zero_stage: int = 0, **sections: Any) -> Learner:
    learner = adapted(model, zero_stage, **sections)
    for _ in range(2):
        learner.step(micro_batch_tokens=60)
    return learner


def main(model: str, out: str, *zero_stages: str) -> None:
    for stage in zero_stages:
        engine = two_steps(model, int(stage)).engine
        tensors = snapshot(engine)
        if engine.rank == 0:
            save_file(tensors, str(Path(out) / f"{stage}.safetensors"))
