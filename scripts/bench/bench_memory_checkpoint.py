"""What a checkpoint in memory after each step costs, beside one on disk and none.

    torchrun --standalone --nproc-per-node 2 scripts/bench/bench_memory_checkpoint.py [--steps 12] [--json OUT]

Two ranks under ZeRO-1 take the step of `bench_train.py` (a Qwen3 of 7.6 M parameters), each on one thread, and after it
in turn save nothing, in memory as on one machine, in memory with a copy of each part for the other rank as on two
machines, and on disk. CPU seconds are those of both ranks with all their threads, from the beginning of a step to the
end of what it has written. A stall is what the next step would wait for beside that: the copy, before it is written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from bench_async import spread
from bench_train import LONGEST, MICRO_BATCH_ROWS, PROMPT, make_rows, save_model, to_groups
from report import write_report

from asyncrl.algo.objective import build_objective
from asyncrl.config import TrainConfig
from asyncrl.extensions.memory_checkpoints.memory import MemoryCheckpoints
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.checkpoint.writers import Writers
from asyncrl.train.engine.deepspeed_engine import (
    TrainEngine,
    init_distributed,
    leave_distributed,
    wait_for_all_ranks,
)
from asyncrl.train.models.loading import load_policy
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.serve_rows import share_batch
from asyncrl.train.step.step import train_step
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.train.step.step_settings import StepSettings

LEARNING_RATE = 1e-6
NOTHING = "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12, help="of each way")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    first = init_distributed() == 0
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as disk,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
    ):
        result = measure(args.steps, Path(disk), Path(memory))
        if first:
            write_report(result, args.json)
        leave_distributed()


def measure(steps: int, disk: Path, memory: Path) -> dict[str, object]:
    """Return CPU and wall seconds, the stalls, and the bytes of a checkpoint in memory. A collective."""
    # In a run, transformers writes on the first rank alone. Both know this name.
    model = Path(tempfile.gettempdir()) / f"model-{os.environ['TORCHELASTIC_RUN_ID']}"
    if dist.get_rank() == 0:
        save_model(str(model))
    wait_for_all_ranks()
    train = TrainConfig(learning_rate=LEARNING_RATE, zero_stage=1, ranks=2)
    engine = TrainEngine(load_policy(str(model), "float32"), train, "float32")
    shared = Path(engine.broadcast(str(memory)))
    objective, rows = build_objective({"preset": "grpo"}), make_rows(0)
    budget = MICRO_BATCH_ROWS * max(PROMPT + len(row["completion"]) for row in rows)
    settings = StepSettings(1.0, budget, 1, horizon=float(LONGEST))
    batch = share_batch(engine, build_step_batch(to_groups(rows), 0, 0))

    def in_memory(folder: Path, machines: int = 1) -> Checkpointer:
        writers = Writers(engine.rank, engine.num_ranks)
        copies = [MemoryCheckpoints(folder, writers, 1, machines, engine.stage)]
        return Checkpointer(disk, engine, str(model), copies=copies, writers=writers)

    savers = {
        NOTHING: Checkpointer(disk / NOTHING, engine, str(model)),
        "memory": in_memory(shared / "one"),
        "memory and copy": in_memory(memory / "two", machines=2),
        "disk": Checkpointer(disk / "saved", engine, str(model), every=1),
    }
    cpu: dict[str, list[float]] = {way: [] for way in savers}
    wall: dict[str, list[float]] = {way: [] for way in savers}
    stall: dict[str, list[float]] = {way: [] for way in savers}
    for version in range(1, steps + 2):
        for way, saver in savers.items():
            engine.barrier()
            cpu_start, start = time.process_time(), time.perf_counter()
            train_step(engine, objective, AuxiliaryModels(objective), batch, settings, LEARNING_RATE)
            stalled = saver.save_due(version, {"totals": version}) if way != NOTHING else 0.0
            saver.wait()
            used = torch.tensor(time.process_time() - cpu_start)
            engine.all_reduce(used)
            if version > 1:
                # The first step of each warms up.
                cpu[way].append(float(used))
                wall[way].append(time.perf_counter() - start)
                stall[way].append(stalled)
    if engine.rank == 0:
        shutil.rmtree(model)
    found = list((memory / "two").rglob("*.safetensors"))
    ratios = {
        way: spread([mine / none for mine, none in zip(cpu[way], cpu[NOTHING], strict=True)]) for way in cpu
    }
    return {
        "steps": steps,
        "cpu_s": {way: spread(values) for way, values in cpu.items()},
        "cpu_over_nothing": ratios,
        "wall_s": {way: spread(values) for way, values in wall.items()},
        "stall_s": {way: spread(values) for way, values in stall.items()},
        "bytes_of_one_machine": sum(path.stat().st_size for path in found),
    }


if __name__ == "__main__":
    main()
