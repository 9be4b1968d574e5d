"""What a trainer writes into its run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.data.table import TokenValues, TrajectoryWriter
from asyncrl.run.checkpoints import KEPT_CHECKPOINTS
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.checkpoint.copies import CopiesContext, configured_copies
from asyncrl.train.checkpoint.writers import Writers
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callback_context import TrainerArguments
from asyncrl.train.loop.metrics_log import MetricsLog
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.types import Group


class Recorder:
    """Writes each step's metrics and trajectories into the run folder."""

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self.metrics = MetricsLog(folder, tensorboard)
        self.trajectories = TrajectoryWriter(folder / "trajectories")

    def on_commit(self, version: int, groups: Sequence[Group], values: TokenValues) -> None:
        self.trajectories.put(version, groups, values)

    def on_step(self, version: int, metrics: dict[str, Any]) -> None:
        self.metrics.write(version, metrics)

    def close(self) -> None:
        self.metrics.close()
        self.trajectories.close()


def make_checkpointer(
    given: TrainerArguments,
    config: Config,
    engine: TrainEngine,
    auxiliary: AuxiliaryModels,
    recorder: Recorder | None,
) -> Checkpointer:
    """Return the run's checkpointer; a separate critic's optimizer goes into the same checkpoint.

    A checkpoint is complete only when the trajectories of its steps are written, since a resumed run does not repeat
    those steps.
    """
    writers = Writers(engine.rank, engine.num_ranks)
    context = CopiesContext(config, engine, writers, given.weights_dir, given.machines)
    return Checkpointer(
        given.folder / "checkpoints",
        engine,
        given.model,
        every=config.train.checkpoint_every,
        keep=KEPT_CHECKPOINTS,
        also_every=config.eval.every,
        others=auxiliary.trained_engines,
        before_complete=recorder.trajectories.flush if recorder is not None else lambda: None,
        copies=configured_copies(context),
        writers=writers,
    )
