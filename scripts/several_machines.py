"""Train a recipe over several machines, which are network namespaces of this one. Needs root.

    python scripts/several_machines.py [--far] [--json OUT] [--folder RUN] [key=value ...]

Beside this machine, the head, there are four nodes with their own addresses, `/dev/shm` and `/tmp`. Over them are
spread a trainer of two ranks under ZeRO-3, two engines, three rollout workers, two environment services and the buffer.

With `--far` two of the nodes are in another region: between them and the rest is a link of `--round-trip-ms` (100) and
`--mbit` (10) in each direction. All rollout workers, both environment services and one engine are there.

Prints reward, held-out success and time, and what went over the link; exit code 0 when the run has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics
from testing.namespaces import Link, Machines, problem
from testing.spread_run import SpreadRun

NODES = 4
SPREAD = (
    "engine.weight_transfer=http",
    "engine.count=2",
    "env.services=2",
    "rollout.workers=3",
    "buffer.machine=node",
    "train.ranks=2",
    "train.nodes=2",
    "train.zero_stage=3",
)
FAR = ("engine.weight_delta=true",)
FAR_ROLES = {1: "buffer,trainer", 2: "trainer,engine", 3: "engine,env,rollout", 4: "env,rollout"}
"""What each node takes where the last two are far."""
FIRST_STEPS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--far", action="store_true", help="two of the nodes are behind a slow link")
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    parser.add_argument("--mbit", type=float, default=10.0, help="of the link, in each direction")
    parser.add_argument("--recipe", default="gridworld_grpo")
    parser.add_argument("--folder", type=Path, help="the run's folder; a temporary one by default")
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args()
    if refused := problem():
        raise ConfigError(refused)
    with tempfile.TemporaryDirectory(prefix="asyncrl-machines-") as temporary:
        report = train(args, args.folder or Path(temporary) / "run")
    print(json.dumps(report, indent=2))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def train(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Run to the end; return the report."""
    config = load_config(args.recipe, [*SPREAD, *(FAR if args.far else ()), *args.overrides])
    link = Link(args.round_trip_ms / 2000, args.mbit * 1e6 / 8) if args.far else None
    far = (3, 4) if args.far else ()
    with RunFolder(path) as folder, Machines(NODES, far, link) as machines:
        run = SpreadRun(config, folder, machines=machines, node_roles=FAR_ROLES if args.far else {})
        summary = run.run()
        to_far, from_far = machines.link_bytes() if link is not None else (0, 0)
    steps = read_metrics(path)
    rewards = [step["reward/mean"] for step in steps]
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}",
        "placement": str(run.placement),
        "steps": summary["steps"],
        "train_wall_s": round(summary["train_wall_s"], 1),
        "reward_first": round(statistics.fmean(rewards[:FIRST_STEPS]), 3),
        "reward_last": round(statistics.fmean(rewards[-FIRST_STEPS:]), 3),
        "eval_before": summary["eval_before"],
        "eval_after": summary["eval_after"],
        "staleness": summary["staleness"],
        "restarts": summary["restarts"],
    }
    if link is not None:
        publishes = [step["weights/publish_s"] for step in steps if "weights/publish_s" in step]
        stood_still = [step["time/publish_s"] for step in steps if "time/publish_s" in step]
        report |= {
            "link": f"{args.round_trip_ms:g} ms there and back, {args.mbit:g} Mbit/s",
            "to_far_mb": round(to_far / 1e6, 1),
            "from_far_mb": round(from_far / 1e6, 1),
            "publish_s": round(statistics.median(publishes), 2) if publishes else None,
            "trainer_stood_still_s": round(statistics.median(stood_still), 2) if stood_still else None,
            "stood_still_share": round(sum(stood_still) / sum(publishes), 3) if publishes else None,
        }
    return report


if __name__ == "__main__":
    raise SystemExit(main())
