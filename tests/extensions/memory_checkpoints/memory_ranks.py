"""Two ranks (`tests.ranks`) that resume from memory, with one folder or with one for each, as on two machines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from asyncrl.extensions.memory_checkpoints.memory import MemoryCheckpoints
from asyncrl.run.checkpoints import state_file
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.checkpoint.writers import Writers
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from tests.train.one_step import make_engine, snapshot, step_once

WAYS = ("1", "0-apart", "1-apart", "3-apart")
"""ZeRO stages; `apart` where each rank has a memory of its own."""


def main(model: str, out: str) -> None:
    for way in WAYS:
        stage, _, apart = way.partition("-")
        engine = make_engine(model, int(stage))
        rank = engine.rank
        mine = Path(out) / way / (str(rank) if apart else "both")

        def checkpointer(one: TrainEngine, mine: Path = mine, apart: str = apart) -> Checkpointer:
            writers = Writers(one.rank, one.num_ranks)
            memory = MemoryCheckpoints(mine, writers, 1, 2 if apart else 1, one.stage)
            return Checkpointer(Path(out) / "disk", one, model, copies=[memory], writers=writers)

        for _ in range(2):
            step_once(engine)
        saver = checkpointer(engine)
        saver.save_due(2, {"count": rank + 3, "tensor": torch.arange(3)})
        drawn = torch.rand(3)
        step_once(engine)
        saver.wait()
        assert saver.error == ""
        expected = snapshot(engine)
        again = make_engine(model, int(stage))
        saver, found = checkpointer(again), []
        for what in ("own", "damaged 0", "lost 1") if apart else ("own",):
            if what == "lost 1" and rank == 1:
                shutil.rmtree(mine)
            if what == "damaged 0" and rank == 0:
                _damage(mine / "step-000002" / state_file(0))
            again.barrier()
            restored = saver.load_copy(2, 0)
            assert restored is not None and restored.version == 2
            assert restored.extra["count"] == 3 and restored.extra["tensor"].tolist() == [0, 1, 2]
            assert torch.equal(torch.rand(3), drawn)
            step_once(again)
            assert all(torch.equal(snapshot(again)[name], tensor) for name, tensor in expected.items())
            found.append(what)
        if apart:
            _lose_both(saver, mine)
        if rank == 0:
            (Path(out) / f"{way}.json").write_text(json.dumps(found))


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _lose_both(saver: Checkpointer, mine: Path) -> None:
    """Lose a part and its copy: nothing is restored, and nothing has changed."""
    before = snapshot(saver.engine)
    if saver.engine.rank == 1:
        shutil.rmtree(mine)
    else:
        shutil.rmtree(mine / "step-000002" / "copies")
    saver.engine.barrier()
    assert saver.load_copy(2, 0) is None
    assert all(torch.equal(snapshot(saver.engine)[name], tensor) for name, tensor in before.items())
