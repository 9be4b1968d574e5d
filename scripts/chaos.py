"""Kill, stop and cut off the processes of a real training run at random, and check that nothing was lost.

    python scripts/chaos.py --kills 10 --seed 0 [--nodes N [--far]] [--minutes M] [--json OUT] [key=value ...]

A run of a recipe trains on the CPU while a random process (buffer, environment service and its workers, engine and
its children, rollout worker, trainer and its ranks) gets SIGKILL or SIGSTOP, and connections between two roles are cut
or slowed by a proxy. `engine.count=2 env.processes=2 train.ranks=2` has several of each. Then:

    every planned task is trained in exactly one step of the history, or dropped or failed with a reason
    no trained token is older than the staleness limit
    held-out success is within noise of an undisturbed run of the same seed (skipped with --no-baseline)
    no process, lease, session, semaphore, segment of shared memory, weight folder or temporary file is left

With `--stop-s 10 30 90` nothing is killed: a process of each role is suspended for 10 s, one after the other, then for
30 s, then for 90 s. `--lend clock EMFILE "no disk" partition` does the same with other faults that go away again: no
further file descriptor, files that cannot grow, all connections of a role cut; with `clock` the clock of the run's
processes is set an hour ahead, then an hour behind. What comes back within `run.silence_timeout_s` may not be
killed, and what is suspended for longer must be; what ends by itself because it cannot open or write files is started
again.

With `--nodes N` the run is on N further machines, network namespaces with their own addresses, `/dev/shm` and `/tmp`,
and each fault kills everything on one of them. A moment later the machine is there again, empty but for asyncrl, or so
much later that its processes have gone to the others. This machine is spared.

With `--far` all but the first of these machines are behind a link of `--round-trip-ms` (100) and `--mbit` (10) in each
direction, and all rollout workers, environment services and engines are there. Weights, in bfloat16, come over HTTP as
what has changed since the version before (`engine.weight_delta`). An engine that was killed has nothing to apply that
to, and gets the whole file. The report says what went over the link.

`--roles trainer rollout grader` has faults of these alone, in this order; `grader` is the process that compares math
answers, of a recipe that has any.

Exit code 0 when all of it holds.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from asyncrl.config import load_config, override_config
from asyncrl.errors import ConfigError
from asyncrl.launch.checks.check import check_run
from asyncrl.launch.roles.roles import Roles
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics
from asyncrl.services.engine.service import compile_cache
from testing.faults import CHILDREN, Monkey, Network
from testing.leftovers import SharedMemory, files_left, processes_left, sessions_left
from testing.lent_faults import SOME_S, LendingMonkey
from testing.namespaces import Link, Machines, problem
from testing.set_clock import remove_clock, start_again_with_clock
from testing.spread_run import SpreadRun

STEPS_PER_FAULT = 3
STEPS_PER_NODE = 25
"""The run goes on while a machine is away, and must not end before the last fault."""
OVERRIDES = (
    "buffer.groups_per_step=4",
    "rollout.group_size=8",
    "rollout.workers=2",
    "rollout.lease_s=20",
    "train.checkpoint_every=2",
    "train.learning_rate=1e-4",
    "train.lr_schedule=constant",
    "train.warmup_steps=0",
    "run.silence_timeout_s=12",
    "run.node_timeout_s=5",
    # One more process to kill.
    "env.services=1",
)
"""Small steps and short waits, so that many faults fit into a few minutes; a learning rate for many small steps."""
PROCESS_FAULTS = ("SIGKILL", "SIGSTOP", "EMFILE", "no disk", "partition", "clock")
ROLES = 6
"""Kinds of victims of a run with one environment service; with more, `--stop-s` needs more steps."""
SILENCE_S = 60.0
"""The limit of silence where faults go away again: the one that a run has by default."""
AWAY_S = (0.5, 5.0)
LONG_AWAY_S = 45.0
"""How long a killed machine is away. It counts as lost after 12 s, and its processes move 5 s later."""
LONG_SHARE = 0.5
NEAR_ROLES, FAR_ROLES = "buffer,trainer", "engine,env,rollout"
FAR = (
    "engine.weight_transfer=http",
    "engine.weight_delta=true",
    # A step then leaves most weights as they are.
    "model.dtype=bfloat16",
    "train.learning_rate=1e-6",
)


class ChaosRoles(Roles):
    """Roles whose connections run through proxies."""

    network: Network

    def route(self, caller: str, callee: Any) -> str:
        return self.network.route(caller, callee.name, callee.url)

    def retire(self, role: str, process: Any = None) -> Any:
        """Tell those who know it by its proxy, too."""
        process = super().retire(role, process)
        self.retired += [self.route(caller, process) for caller in ("rollout", "trainer")]
        return process


class NodeMonkey(Monkey):
    """Kills whole machines."""

    machines: Machines
    start_node: Callable[[int], Any]

    def _strike(self) -> int:
        host = urlsplit(self.roles.main.buffer.url).hostname
        buffers = [number for number in self.machines.numbers if self.machines.address(number) == host]
        number = self.random.choice(buffers if buffers and not self.faults else self.machines.numbers)
        killed = self.machines.kill(number)
        away_s = LONG_AWAY_S if self.random.random() < LONG_SHARE else self.random.uniform(*AWAY_S)
        had = "with the buffer, " if number in buffers else ""
        self._note("node", "SIGKILL", f"node{number}, {had}{killed} processes, away for {away_s:.1f} s")
        self._closed.wait(away_s)
        self.start_node(number)
        return 1

    def _disturb_network(self) -> None:
        """Leave it as it is: nodes call each other directly."""


class ChaosRun(SpreadRun):
    """A run with a monkey beside it."""

    def __init__(
        self,
        *args: Any,
        kills: int,
        seed: int,
        minutes: float,
        machines: Machines | None = None,
        node_roles: Mapping[int, str] | None = None,
        lent: Sequence[tuple[str, float]] = (),
        only: Sequence[str] = (),
    ) -> None:
        super().__init__(*args, machines=machines, node_roles=node_roles)
        self.only = only
        self.kills, self.seed, self.minutes, self.lent = kills, seed, minutes, lent
        self.monkey: Monkey
        self.shared_memory = SharedMemory(self._started)
        self.sessions_left = -1

    def _started(self) -> list[int]:
        """Return this process and those of roles on this machine, which need not be its children."""
        roles = self.roles.process_group.processes if hasattr(self, "roles") else []
        return [os.getpid(), *(process.popen.pid for process in roles if process.popen.pid > 0)]

    def make_roles(self, model: str) -> Roles:
        if self.machines is not None:
            roles = super().make_roles(model)
            monkey = NodeMonkey(roles, Network(), self.kills, self.seed, 60 * self.minutes)
            monkey.machines, monkey.start_node = self.machines, self.start_node
            self.monkey = monkey
            return roles
        roles = ChaosRoles(self.config, self.folder.path, model, self.weights_dir)
        roles.network = Network()
        common = (roles, roles.network, self.kills, self.seed, 60 * self.minutes)
        self.monkey = (
            LendingMonkey(*common, plan=self.lent, only=self.only)
            if self.lent
            else Monkey(*common, only=self.only)
        )
        return roles

    def run(self) -> dict[str, Any]:
        self.shared_memory.start()
        try:
            return super().run()
        finally:
            self.monkey.rest()
            self.monkey.network.close()
            self.shared_memory.close()

    async def _train(self, client: Any, tasks: Any) -> None:
        self.monkey.start()
        await super()._train(client, tasks)
        await asyncio.to_thread(self.monkey.rest)
        wait_s = 2 * self.config.rollout.lease_s
        token = self.roles.credentials.bearer("env")
        held = [await sessions_left(env.url, token, wait_s) for env in self.roles.envs]
        self.sessions_left = next((number for number in held if number), 0)


def main() -> int:
    args = parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-chaos-"))
    if "clock" in args.lend:
        start_again_with_clock(folder)
    try:
        report = chaos(args, folder)
    except BaseException:
        print(f"chaos: the run is kept in {folder}", file=sys.stderr)
        raise
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "faults"}, indent=2))
    wrong = [name for name, held in report["checks"].items() if not held]
    print(f"chaos: {'failed: ' + ', '.join(wrong) if wrong else 'everything held'}", file=sys.stderr)
    remove_clock()
    if wrong:
        print(f"chaos: the run is kept in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="processes killed or stopped")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--nodes", type=int, default=0, help="further machines; kills are of whole machines then"
    )
    parser.add_argument(
        "--far", action="store_true", help="all machines but the first are behind a slow link"
    )
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    parser.add_argument("--mbit", type=float, default=10.0, help="of the link, in each direction")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="make no more faults after this time, however few"
    )
    parser.add_argument(
        "--stop-s", type=float, nargs="+", default=[], metavar="S",
        help="instead of kills, suspend a process of each role for so long, then for the next of these times",
    )  # fmt: skip
    parser.add_argument(
        "--lend", nargs="+", default=[], choices=["clock", "EMFILE", "no disk", "partition"],
        help="instead of kills, faults that go away again, for each role",
    )  # fmt: skip
    parser.add_argument(
        "--roles", nargs="+", default=[], choices=[*CHILDREN, "grader"], help="have faults of these alone"
    )
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--recipe", default="gridworld_grpo")
    parser.add_argument("--no-baseline", action="store_true", help="skip the undisturbed run")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    return parser.parse_intermixed_args()


def chaos(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run undisturbed and disturbed; return the report."""
    lent = [*(("SIGSTOP", seconds) for seconds in args.stop_s), *((kind, SOME_S) for kind in args.lend)]
    # Everything else is seen with a clock that was set.
    lent.sort(key=lambda one: one[0] != "clock")
    if lent:
        roles = len(args.roles) or ROLES
        args.kills = sum(1 if kind == "clock" else roles for kind, _ in lent)
    steps = (STEPS_PER_NODE if args.nodes else STEPS_PER_FAULT) * args.kills + 4
    if args.far and args.nodes < 2:
        raise ConfigError(f"--far needs --nodes 2 or more, got {args.nodes}")
    if args.nodes and (refused := problem()):
        raise ConfigError(f"--nodes {args.nodes}: {refused}")
    spread = ["engine.weight_transfer=collective", "buffer.machine=node"] if args.nodes else []
    spread += FAR if args.far else ()
    link = Link(args.round_trip_ms / 2000, args.mbit * 1e6 / 8) if args.far else None
    far = range(2, args.nodes + 1) if args.far else ()
    node_roles = {1: NEAR_ROLES, **dict.fromkeys(far, FAR_ROLES)} if args.far else {}
    patient = [f"run.silence_timeout_s={SILENCE_S}"] if lent else []
    wanted = [
        *OVERRIDES,
        *spread,
        *patient,
        f"train.num_steps={steps}",
        f"run.seed={args.seed}",
        *args.overrides,
    ]
    config = load_config(args.recipe, wanted)
    steps = config.train.num_steps
    config = load_config(args.recipe, [*wanted, f"env.num_tasks={steps * config.buffer.groups_per_step}"])
    check_run(config, alone=not args.nodes)
    baseline = None
    if not args.no_baseline and config.eval.tasks:
        with RunFolder(folder / "undisturbed") as run_folder:
            # On this machine alone.
            alone = override_config(config, ["train.nodes=1", "buffer.machine=head"])
            baseline = TrainRun(alone, run_folder).run()["eval_after"]
    temporary = folder / "tmp"
    temporary.mkdir()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", compile_cache())  # what torch compiles is meant to stay
    os.environ["TMPDIR"] = str(temporary)
    further = Machines(args.nodes, far, link) if args.nodes else contextlib.nullcontext()
    with RunFolder(folder / "disturbed") as run_folder, further as machines:
        run = ChaosRun(
            config, run_folder, kills=args.kills, seed=args.seed, minutes=args.minutes, machines=machines,
            node_roles=node_roles, lent=lent, only=args.roles,
        )  # fmt: skip
        summary = run.run()
        crossed = machines.link_bytes() if machines is not None and args.far else None
    kills = [fault for fault in run.monkey.faults if fault.kind in PROCESS_FAULTS]
    left = {
        "processes": processes_left(run.folder.path),
        "shared_memory": run.shared_memory.left(),
        "files": files_left(run.folder.path, run.weights_dir, temporary),
        "sessions": run.sessions_left,
    }
    checks = check(run, summary, baseline) | {f"no {name} left": not found for name, found in left.items()}
    return {
        "kills": len(kills),
        "kills_by_kind": dict(collections.Counter(fault.kind for fault in kills)),
        "kills_by_role": dict(collections.Counter(fault.role for fault in kills)),
        "network_faults": len(run.monkey.faults) - len(kills),
        "left": left,
        "seed": args.seed,
        "steps": summary["steps"],
        "train_wall_s": round(summary["train_wall_s"], 1),
        "checks": checks,
        "tasks": states(run.folder.path),
        "staleness": summary["staleness"]["max"],
        "restarts": summary["restarts"],
        "recovery_s": recoveries(run.folder.path, run.monkey.replaced_s),
        "eval_after": summary["eval_after"],
        "eval_after_undisturbed": baseline,
        "buffers_lost": sum("with the buffer" in fault.detail for fault in kills),
        **(crossed_link(run.folder.path, *crossed) if crossed is not None else {}),
        "faults": [asdict(fault) for fault in run.monkey.faults],
    }


def crossed_link(path: Path, to_far: int, from_far: int) -> dict[str, Any]:
    """Return what went over the slow link, in bytes, and what the versions were that the trainer published."""
    published = [step for step in read_metrics(path) if "weights/bytes" in step]
    deltas = [step["weights/delta_bytes"] for step in published if step["weights/delta_bytes"]]
    seconds = [step["weights/publish_s"] for step in published]
    return {
        "to_far_bytes": to_far,
        "from_far_bytes": from_far,
        "versions": len(published),
        "version_bytes": max((step["weights/bytes"] for step in published), default=0),
        "versions_with_delta": len(deltas),
        "delta_bytes": round(statistics.median(deltas)) if deltas else 0,
        "publish_s": round(statistics.median(seconds), 2) if seconds else None,
    }


def check(run: ChaosRun, summary: dict[str, Any], baseline: dict[str, Any] | None) -> dict[str, bool]:
    """Return what held, by name."""
    found = {
        "every fault was made": run.monkey.out_of_time
        or len([f for f in run.monkey.faults if f.kind in PROCESS_FAULTS]) == run.monkey.kills,
        **check_ledger(run.folder.path, run.config.buffer.max_staleness, summary["steps"]),
    }
    if isinstance(run.monkey, LendingMonkey):
        hasty, left = run.monkey.killed(run.config.run.silence_timeout_s)
        found["no process was killed that came back in time"] = not hasty
        found["what was away for longer was restarted"] = not left
    if baseline is not None:
        after = summary["eval_after"]
        found["success is within noise"] = (
            after["ci_low"] <= baseline["ci_high"] and baseline["ci_low"] <= after["ci_high"]
        )
    return found


def check_ledger(path: Path, max_staleness: int, steps: int) -> dict[str, bool]:
    """Return what holds of the tasks and tokens of a run that has taken so many steps, by name."""
    planned = (
        sqlite3.connect(path / "ledger.sqlite")
        .execute("SELECT id, state, step, reason FROM tasks ORDER BY seq")
        .fetchall()
    )
    trained = {task: step for task, state, step, _ in planned if state == "trained"}
    seen: dict[str, set[int]] = collections.defaultdict(set)
    lags = []
    for file in sorted((path / "trajectories").glob("step-*.parquet")):
        for row in pq.read_table(file).to_pylist():
            seen[row["task"]].add(row["step"] - 1)
            sampled = [v for v, m in zip(row["versions"], row["loss_mask"], strict=True) if m]
            lags += [row["step"] - 1 - v for v in sampled]
    return {
        "every task has ended": all(state in ("trained", "dropped", "failed") for _, state, _, _ in planned),
        "every loss has a reason": all(why for _, state, _, why in planned if state in ("dropped", "failed")),
        "every task was trained in one step": {t: {s} for t, s in trained.items()} == dict(seen),
        "no token is too old": max(lags, default=0) <= max_staleness,
        "versions follow each other": [m["step"] for m in read_metrics(path)] == list(range(1, steps + 1)),
    }


def states(path: Path) -> dict[str, int]:
    query = "SELECT state || coalesce(': ' || substr(nullif(reason, ''), 1, 60), ''), count(*) FROM tasks GROUP BY 1"
    return dict(sqlite3.connect(path / "ledger.sqlite").execute(query).fetchall())


def recoveries(path: Path, workers_s: list[float]) -> dict[str, dict[str, float]]:
    """Return how long each role was away, in seconds, by the launcher's record and that of environment workers."""
    away: dict[str, list[float]] = collections.defaultdict(list)
    if workers_s:
        away["env worker"] = workers_s
    record = path / "restarts.jsonl"
    for line in record.read_text().splitlines() if record.exists() else ():
        event = json.loads(line)
        away[event["name"].split("-")[0]].append(event["down_s"])
    return {
        role: {"count": len(s), "median": round(statistics.median(s), 2), "max": max(s)}
        for role, s in away.items()
    }


if __name__ == "__main__":
    raise SystemExit(main())
