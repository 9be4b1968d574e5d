"""The norm of the gradient of each trajectory's log-probability, by which some advantages weigh a baseline (VCPO)."""

from __future__ import annotations

import torch

from asyncrl.errors import ConfigError
from asyncrl.train.engine.accumulated import total_norm
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.parts.frozen import score
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.serve_rows import serve_rows
from asyncrl.train.step.step_batch import StepBatch, pad_rows
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors


class ScoreNorms(StepPart):
    """Takes one backward pass for each trajectory."""

    name = "score_norms"

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`. Raises `ConfigError` under ZeRO-3, where no rank holds whole parameters."""
        if engine.stage == 3:
            raise ConfigError(
                "train.zero_stage: must be below 3 where algo.advantage reads the norm of each trajectory's gradient"
            )
        module = engine.engine.module
        parameters = [p for p in module.model.parameters() if p.requires_grad]
        plan = [
            [[row] for row in range(r, batch.num_rows, engine.num_ranks)] for r in range(engine.num_ranks)
        ]
        serve_rows(engine, batch, plan)
        norms = torch.zeros(batch.num_rows, device=engine.device)
        for (row,) in plan[engine.rank]:
            logp = score(module, engine, pad_rows(batch, [row]), settings.temperature)
            grads = torch.autograd.grad(logp["logp"].sum(), parameters, allow_unused=True)
            norms[row] = total_norm([g for g in grads if g is not None])
        engine.all_reduce(norms)
        found.rows[self.name] = norms.cpu()


def score_norms(context: PartContext) -> ScoreNorms:
    """Return the part of a run."""
    return ScoreNorms()
