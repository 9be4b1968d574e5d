"""Where a trainer starts: at the beginning, or at the newest checkpoint after a crash, on disk or elsewhere.

The ledger says how far the run has come. A trainer that finds it ahead of its own start brings everything back to one
version, in this order, so that a crash in between can be repeated without harm:

    leases pause -> the ledger forgets later steps -> engines get the checkpoint's weights
    -> the ledger is told the staleness limit in force -> leases resume

Tasks of the forgotten steps are planned again, so in the history that remains each is trained once. At most
`train.checkpoint_every` steps are lost, and fewer where a copy (`asyncrl.train.checkpoint.copies`) has a newer state.
One that is not taken is removed before the ledger forgets its step, which another may take the place of.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any, Protocol

from asyncrl.errors import InputError
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.weights.publish import PublishReport

log = logging.getLogger("asyncrl.train")


class RunLedger(Protocol):
    """The part of the buffer a recovery uses, on rank 0."""

    def stats(self) -> dict[str, Any]: ...
    def pause(self, paused: bool) -> None: ...
    def rollback(self, version: int) -> int: ...
    def replan(self, version: int) -> int: ...
    def set_staleness_limit(self, limit: int) -> None: ...


class Recoverable(Protocol):
    """The part of the trainer a recovery uses."""

    engine: TrainEngine

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def staleness_limit(self) -> int | None: ...
    def join(self, engine: TrainEngine) -> bool: ...


class Publisher(Protocol):
    def publish(self, version: int, engine: TrainEngine) -> PublishReport: ...


def recover(
    trainer: Recoverable, checkpointer: Checkpointer, source: RunLedger | None, publisher: Publisher
) -> int:
    """Bring trainer, ledger and engines to one version and return it. Call on every rank; `source` is rank 0's.

    Without a checkpoint the run starts again at version 0, from the base model the trainer was built with, or from the
    global weights of other runs that train the same policy. Raises `InputError` when the checkpoints are not of this
    ledger.
    """
    engine = trainer.engine
    plan = None
    if source is not None:
        plan = _plan(source.stats(), checkpointer)
    decided = engine.broadcast(plan)
    version = decided["version"]
    restored = checkpointer.load_copy(*decided["copy"]) if decided["copy"] is not None else None
    if restored is None and decided["path"]:
        restored = checkpointer.load(Path(decided["path"]))
    if restored is not None:
        version = restored.version
        trainer.load_state_dict(restored.extra)
    checkpointer.forget_copies(but=version)
    adopted = trainer.join(engine)
    if decided["started"] and source is not None:
        source.pause(True)
        again = source.rollback(version)
        log.warning(
            "resuming at version %d of %d; %d tasks are pending again", version, decided["ledger"], again
        )
    if adopted and source is not None:
        # What has been sampled already has another policy's log-probabilities.
        source.pause(True)
        source.replan(version)
    if decided["started"] or adopted:
        publisher.publish(version, engine)
    if source is not None:
        if (limit := trainer.staleness_limit()) is not None:
            # The ledger may still have the limit of a later, forgotten step, or the recipe's.
            source.set_staleness_limit(limit)
        source.pause(False)
    engine.barrier()
    return version


def _plan(stats: dict[str, Any], checkpointer: Checkpointer) -> dict[str, Any]:
    folder = checkpointer.folder
    beyond = [path for version, path in complete_checkpoints(folder) if version > stats["version"]]
    if beyond:
        raise InputError(
            f"{beyond[0]}: is beyond the ledger, which is at version {stats['version']}; "
            "the two are of different runs"
        )
    found = checkpointer.find(stats["version"])
    for version, path in complete_checkpoints(folder):
        if found is None or version > found[0]:
            # Damaged, or `find` would have returned it. Later versions are trained again.
            shutil.rmtree(path, ignore_errors=True)
    copy = checkpointer.newest_copy(stats["version"])
    if copy is not None and found is not None and copy[0] <= found[0]:
        copy = None
    return {
        "ledger": stats["version"],
        # Engines may be ahead as soon as a batch was taken: its weights may have been published.
        "started": stats["version"] > 0 or stats["taken"] > 0,
        "version": found[0] if found else 0,
        "path": str(found[1]) if found else "",
        "copy": copy,
    }
