"""Peak memory of a trainer's ranks while they get a batch, compute its advantages and divide its rows.

    torchrun --nproc-per-node 2 scripts/bench/bench_batch.py [--groups 16] [--json OUT]

Rows are an agent's: log-normal lengths (median 15,000 tokens, at most 60,000), 400 of every 1,000 tokens sampled.
No model runs: what is measured is the batch itself.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.train.engine.deepspeed_engine import TrainEngine, init_distributed, leave_distributed
from asyncrl.train.engine.progress import Progress
from asyncrl.train.step.estimates import estimate_advantages
from asyncrl.train.step.serve_rows import serve_rows, serve_values, share_batch
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.types import Group, Status, Task, Trajectory, Turn

GROUP_SIZE, LONGEST, EVERY, SAMPLED = 8, 60_000, 1000, 400


class Ranks(TrainEngine):
    """What moves rows between ranks, without a model."""

    def __init__(self) -> None:
        self.rank, self.num_ranks = self._join()
        self.device, self.progress, self.sequence_ranks = torch.device("cpu"), Progress(), 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    init_distributed()
    engine = Ranks()
    bodies = [encode_group(one) for one in groups(args.groups)] if engine.rank == 0 else []
    with Peak() as peak:
        start = time.perf_counter()
        first = build_step_batch([decode_group(body) for body in bodies], 0, 0) if engine.rank == 0 else None
        batch, values = share_batch(engine, first), {}
        if engine.rank == 0:
            objective = build_objective({"preset": "grpo"})
            values["advantages"] = estimate_advantages(objective, batch, StepTensors(), 0.0).advantages
        plan = plan_micro_batches(batch.lengths, 16384, engine.num_ranks)
        serve_rows(engine, batch, plan)
        serve_values(engine, batch, plan, values)
        taken_s = time.perf_counter() - start
    found = {
        "rank": engine.rank, "rows": batch.num_rows, "tokens": sum(batch.lengths), "seconds": round(taken_s, 2),
        "peak_mib": round(peak.bytes / 2**20),
    }  # fmt: skip
    ranks = range(engine.num_ranks)
    received = [engine.broadcast(found if rank == engine.rank else None, rank) for rank in ranks]
    if engine.rank == 0:
        print(json.dumps(received, indent=2))
        if args.json:
            args.json.write_text(json.dumps(received))
    leave_distributed()


def groups(count: int) -> list[Group]:
    rng = np.random.default_rng(0)
    return [
        Group(
            f"g{g:03d}", Task(f"t{g:03d}", "agent"), 0, tuple(row(rng, g, i) for i in range(GROUP_SIZE)), "w"
        )
        for g in range(count)
    ]


def row(rng: np.random.Generator, group: int, index: int) -> Trajectory:
    length = int(min(LONGEST, max(2 * EVERY, rng.lognormal(np.log(15_000), 0.6))))
    starts = range(EVERY - SAMPLED, length - SAMPLED, EVERY)
    mask = np.zeros(length, np.bool_)
    for start in starts:
        mask[start : start + SAMPLED] = True
    return Trajectory(
        task_id=f"t{group:03d}",
        episode_index=index,
        token_ids=rng.integers(0, 1000, length).astype(np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turns=tuple(Turn(start, start + SAMPLED) for start in starts),
        reward=float(rng.random()),
        status=Status.FINISHED,
    )


class Peak:
    """The most memory that this process takes beyond what it had, while it is open."""

    def __init__(self) -> None:
        self.bytes = 0
        self._process = psutil.Process()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._before = self._process.memory_info().rss
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)


if __name__ == "__main__":
    main()
