"""Trainers that use the same memory by turns. How engines and a trainer do is tested with a real engine
(tests/services/engine/test_sleep.py)."""

import subprocess
import sys

import torch

from asyncrl.train.trainer_lock import TrainerLock
from asyncrl.train.turns import TrainerTurns
from tests.train.one_step import make_engine
from tests.train.scripted_run import Scripted, groups_at, make_trainer

LOOK = """
import sys
from pathlib import Path
from asyncrl.train.trainer_lock import TrainerLock

print(TrainerLock(Path(sys.argv[1]), 0, "other").acquire(0.0))
"""


def is_free(folder):
    """True when another trainer could work."""
    found = subprocess.run(
        [sys.executable, "-c", LOOK, str(folder)], capture_output=True, text=True, check=True
    )
    return found.stdout.strip() == "True"


def trained(folder, model, by_turns):
    """Return what a trainer of two steps told of its turns and metrics, and its weights."""
    calls, metrics = [], []

    class Watched(Scripted):
        def take(self, step, wait_s):
            calls.append(("take", by_turns and is_free(folder)))
            return super().take(step, wait_s)

        def publish(self, version, engine):
            calls.append(("weights", by_turns and is_free(folder)))
            if by_turns:
                turns.to_others()
            calls.append(("commit", by_turns and is_free(folder)))
            return super().publish(version, engine)

    engine = make_engine(model, 1)
    trainer = make_trainer(
        engine, Watched([groups_at(0), groups_at(1)]), 2, 0, on_step=lambda _, found: metrics.append(found),
        schedule="synchronous",
    )  # fmt: skip
    if by_turns:
        lock = TrainerLock(folder, 0, "main")
        assert lock.acquire(1.0)
        trainer.turns = turns = TrainerTurns([engine], lock)
    assert trainer.run() == 2
    return calls, metrics, {name: tensor.clone() for name, tensor in engine.checkpoint()}


def test_others_may_work_whenever_a_trainer_does_not_and_its_weights_are_those_it_would_have_alone(
    tmp_path, tiny_model
):
    calls, metrics, weights = trained(tmp_path, tiny_model, True)
    step = [("take", True), ("weights", False), ("commit", True)]
    assert calls == [*step, *step]
    assert all(found["turn/waited_s"] >= 0 and found["turn/moved_s"] > 0 for found in metrics)
    assert len(metrics) == 2
    _, _, alone = trained(tmp_path, tiny_model, False)
    assert weights.keys() == alone.keys()
    assert all(torch.equal(weights[name], alone[name]) for name in alone)
