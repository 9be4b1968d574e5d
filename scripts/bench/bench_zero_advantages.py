"""Seconds of a training step by how many of its groups have one outcome, and so no advantages.

    python scripts/bench/bench_zero_advantages.py [--repeats 5] [--json OUT]

The batch, model and objective (GRPO) of `bench_train.py`, on one thread: the same tokens whatever the rewards. Steps
take turns; each is compared with the step of its round in which every group has advantages.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench_async import say, spread
from bench_train import GROUPS, SIZE, make_ours, make_rows, save_model
from report import write_report

from asyncrl.train.engine.deepspeed_engine import init_distributed


def with_one_outcome(rows: list[dict[str, Any]], num_groups: int) -> list[dict[str, Any]]:
    """Return the rows with rewards such that this many groups, the first ones, have no advantages."""
    return [
        {**row, "reward": 1.0 if row["group"] < num_groups else float(place % 2)}
        for place, row in enumerate(rows)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    init_distributed()
    rows = make_rows(0)
    counts = (0, GROUPS // 2, GROUPS)
    times: dict[int, list[float]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        save_model(folder)
        step = make_ours(folder)
        step(with_one_outcome(rows, 0))
        for repeat in range(args.repeats):
            for count in counts:
                start = time.perf_counter()
                step(with_one_outcome(rows, count))
                times[count].append(time.perf_counter() - start)
            say(f"repeat {repeat + 1}: " + ", ".join(f"{one[-1]:.2f} s" for one in times.values()))
    found = {
        f"{count} of {GROUPS} groups": {
            "step_s": spread(times[count]),
            "of_the_whole": spread([one / whole for one, whole in zip(times[count], times[0], strict=True)]),
        }
        for count in counts
    }
    write_report({"rows": GROUPS * SIZE, "one_outcome": found}, args.json)


if __name__ == "__main__":
    main()
