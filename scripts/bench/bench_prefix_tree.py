"""Seconds of forward and backward with shared prefixes computed once, compared with separate rows.

    python scripts/bench/bench_prefix_tree.py [--run runs/NAME] [--repeats 3] [--json OUT]

A randomly initialised model on 4 groups of 16 rows of 256 tokens, which share a prompt of 64, 128 or 192 tokens and
nothing after it. With --run the trajectories of a run too: its first step, the one in the middle and the last, with a
model of the demo's size. Both ways take turns on one thread. Nodes are the tokens left of each batch.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from bench_async import say, spread

from asyncrl.data.micro_batches import pack_rows, plan_micro_batches
from asyncrl.extensions.supervised.sft import pad
from asyncrl.train.models.policy import PolicyModel
from asyncrl.train.models.prefix_tree import enable_prefix_trees, tree_of
from asyncrl.train.models.tiny_model import build_model

GROUPS, SIZE, TOKENS, VOCABULARY = 4, 16, 256, 512
MICRO_BATCH_TOKENS = 8192
Row = tuple[np.ndarray, np.ndarray]
"""Token ids and loss mask [T] of one row."""


def synthetic(prompt: int) -> tuple[list[Row], list[int]]:
    """Return rows and the group of each."""
    rng = np.random.default_rng(prompt)
    rows = []
    for _ in range(GROUPS):
        shared = rng.integers(5, VOCABULARY, prompt)
        for _ in range(SIZE):
            ids = np.concatenate([shared, rng.integers(5, VOCABULARY, TOKENS - prompt)])
            rows.append((ids, np.arange(TOKENS) >= prompt))
    return rows, [row // SIZE for row in range(len(rows))]


def recorded(run: Path) -> dict[str, tuple[list[Row], list[int]]]:
    """Return the same of three of a run's steps, by name."""
    paths = sorted((run / "trajectories").glob("*.parquet"))
    if not paths:
        sys.exit(f"--run {run}: has no trajectories")
    found: dict[int, list[dict[str, Any]]] = {}
    for row in (row for path in paths for row in pq.read_table(path).to_pylist()):
        found.setdefault(row["step"], []).append(row)
    steps = sorted(found)
    chosen = dict.fromkeys([steps[0], steps[len(steps) // 2], steps[-1]])
    return {
        f"{run.name}, step {step}": (
            [(np.array(row["token_ids"]), np.array(row["loss_mask"])) for row in found[step]],
            [row["group"] for row in found[step]],
        )
        for step in chosen
    }


def micro_batches(
    rows: list[Row], prefix_groups: list[int] | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return padded ids and masks [B,T]."""
    ends = [np.flatnonzero(mask)[-1] + 1 for _, mask in rows]
    packing = None
    if prefix_groups is not None:
        packing = pack_rows([ids[:end] for (ids, _), end in zip(rows, ends, strict=True)], prefix_groups)
    plan = plan_micro_batches([len(ids) for ids, _ in rows], MICRO_BATCH_TOKENS, packing=packing)[0]
    return [pad([rows[row] for row in part]) for part in plan]


def train_s(policy: PolicyModel, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return seconds of one forward and backward pass over all."""
    policy.zero_grad()
    start = time.perf_counter()
    for ids, mask in parts:
        policy(ids, mask, 1.0)["logp"].sum().backward()
    return time.perf_counter() - start


def compare(rows: list[Row], prefix_groups: list[int], model: Any, repeats: int) -> dict[str, Any]:
    shared, plain = PolicyModel(model), PolicyModel(copy.deepcopy(model))
    if not enable_prefix_trees(model):
        raise SystemExit(f"{type(model).__name__} does not take trees")
    trees, batches = micro_batches(rows, prefix_groups), micro_batches(rows, None)
    train_s(shared, trees), train_s(plain, batches)
    times = [(train_s(shared, trees), train_s(plain, batches)) for _ in range(repeats)]
    return {
        "tokens": sum(len(ids) for ids, _ in rows),
        "nodes": sum(len(tree_of(ids, mask).token_ids) for ids, mask in trees),
        "shared_s": spread([one for one, _ in times]),
        "plain_s": spread([other for _, other in times]),
        "speedup": spread([other / one for one, other in times]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="folder of a run, for its trajectories")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = {f"prompt {prompt} of {TOKENS}": synthetic(prompt) for prompt in (64, 128, 192)}
    work |= recorded(args.run) if args.run else {}
    result = {}
    for name, (rows, prefix_groups) in work.items():
        result[name] = compare(
            rows, prefix_groups, build_model(VOCABULARY, 128, 4, 4, TOKENS, 2, 0), args.repeats
        )
        say(f"{name}: {result[name]['speedup']['median']:.2f} times as fast")
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
