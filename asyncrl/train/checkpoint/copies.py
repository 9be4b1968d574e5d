"""Where else a run's checkpoints are, beside its folder: what extensions add at the seam `checkpoint_copies`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.train.checkpoint.checkpoint_files import SentTensors, StateFiles
from asyncrl.train.checkpoint.writers import Writers
from asyncrl.train.engine.deepspeed_engine import TrainEngine


class CheckpointCopies:
    """One such place, on each rank. It may have each whole checkpoint (`put`, `fetch`), or states of training from
    which the ranks resume, in a rhythm of its own (`due`, `write`, `newest`, `open`, `forget`). Here it has nothing."""

    name: ClassVar[str] = ""
    """What it is called where a state could not be written."""
    where: str = ""
    """What messages say that the place is."""

    def put(self, path: Path, version: int, keep: int) -> None:
        """Keep a checkpoint that is complete in the run's folder, and the newest `keep`. In rank 0's writing thread;
        what it raises is reported, and the run goes on."""

    def fetch(self, folder: Path, at_most: int) -> None:
        """Bring the newest checkpoint up to a version into the run's folder, unless that has it. On rank 0."""

    def due(self, version: int) -> bool:
        """Whether it has the state of a version."""
        return False

    def write(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
        before_complete: Callable[[], object] = lambda: None,
    ) -> None:
        """Write a state with the other ranks' writing threads: what a checkpoint's `training_state` has of this rank.

        before_complete: waits, on rank 0, for what must be on disk before the version counts. What is raised is
        reported, and the run goes on.
        """

    def newest(self, at_most: int) -> int | None:
        """Return the newest version up to `at_most` whose state it has. On rank 0."""
        return None

    def open(
        self, version: int, engine: TrainEngine, trained: Mapping[str, TrainEngine]
    ) -> tuple[Path, StateFiles | SentTensors] | None:
        """Return rank 0's folder with a state's values, and its tensors as each rank of `engine` needs them; None, with
        a line in the log, if a part is lost. A collective.

        trained: the engines whose pieces are read, by the prefix of their keys.
        """
        return None

    def forget(self, but: int | None = None) -> None:
        """Remove the states of all versions but one. A collective."""


@dataclass(frozen=True, slots=True)
class CopiesContext:
    """What such a place may be made of."""

    config: Config
    engine: TrainEngine
    writers: Writers
    weights_dir: Path
    """Where the run publishes its weights, on this machine."""
    machines: int
    """Over which the ranks are spread evenly, in their order."""


def configured_copies(context: CopiesContext) -> list[CheckpointCopies]:
    """Return the places that a run asks for. Raises what making them raises."""
    return [row.load()(context) for row in rows("checkpoint_copies") if row.wanted(context)]
