"""Train one policy by several runs that synchronise seldom, on this machine, beside one run of as many rollouts.

    python scripts/several_trainers.py [--arms one,alone,diloco,streaming,8bit] [--seeds 0] [--apart] [--json OUT]
    python scripts/several_trainers.py --kill [--arms diloco]

`one` is a single run with the rollouts of all members in each step, as if they were synchronised after every step.
`alone` is one member without the others. The other arms are runs that share the tasks and one `asyncrl serve outer`.
With `--apart` the report has how far the members' weights are from each other after each step.
With `--kill` the service is killed in the middle and started again, and then a whole member, which is resumed. The
report says whether all ended with the same weights, and whether each task was trained once, by one member.

Prints held-out success of each final policy, bytes exchanged and time; exit code 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load_file

from asyncrl.config import load_config
from asyncrl.credentials import VARIABLE
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.run.metrics import read_metrics
from testing.fork_server import start_fork_server

ARMS: dict[str, tuple[str, ...]] = {
    "one": (),
    "alone": (),
    "diloco": (),
    "nesterov": ("outer.learning_rate=0.7", "outer.momentum=0.9"),
    "half": ("outer.learning_rate=0.7", "outer.momentum=0.5"),
    "streaming": ("outer.fragments=3", "outer.delay=1", "outer.mix=0.5"),
    "gossip": ("outer.method=gossip",),
    "8bit": ("outer.bits=8",),
    "4bit": ("outer.bits=4",),
}
WITHOUT_SERVICE = ("one", "alone")
START_S, RUN_S = 120.0, 1800.0
LOOK_S = 0.2


class Outer:
    """`asyncrl serve outer`, at the same address each time it is started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        ready = self.folder / "outer-ready.json"
        ready.unlink(missing_ok=True)
        argv = ["serve", "outer", "--state", str(self.folder / "outer"), "--port", str(self.port)]
        with open(self.folder / "outer.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl", *argv, "--ready-file", str(ready)], stdout=log, stderr=log
            )
        wait_until(ready.exists, START_S, self.process)
        self.url = json.loads(ready.read_text())["url"]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def status(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {os.environ[VARIABLE]}"}
        request = urllib.request.Request(f"{self.url}/v1/outer/status", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.loads(reply.read())


class Member:
    """One run of `asyncrl train`."""

    def __init__(self, folder: Path, name: str, recipe: str, settings: Sequence[str]) -> None:
        self.run = folder / "runs" / name
        self.log = folder / f"{name}.log"
        self.process = self._start(recipe, f"run.folder={folder / 'runs'}", f"run.name={name}", *settings)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "asyncrl", "train", *words],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def steps(self) -> int:
        return len(read_metrics(self.run)) if self.run.exists() else 0

    def kill(self) -> None:
        """Kill the launcher at once; all its processes end with it."""
        self.process.kill()
        self.process.wait()

    def resume(self) -> None:
        # The folder is locked until the last process of the killed run has ended.
        time.sleep(5.0)
        self.process = self._start("--resume", str(self.run))

    def finish(self) -> None:
        code = self.process.wait(RUN_S)
        if code:
            raise SystemExit(
                f"{self.run.name} ended with {code}; see {self.log}\n{self.log.read_text()[-3000:]}"
            )

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(60)


class Followed:
    """The weights of members after each step, from checkpoints as they come: few of them are kept."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.weights: list[dict[int, np.ndarray]] = [{} for _ in members]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for member, weights in zip(self.members, self.weights, strict=True):
            for version, path in complete_checkpoints(member.run / "checkpoints"):
                if version not in weights:
                    # It may be deleted meanwhile.
                    with contextlib.suppress(FileNotFoundError, SafetensorError):
                        found = load_file(path / "model.safetensors")
                        weights[version] = np.concatenate([found[name].ravel() for name in sorted(found)])

    def apart(self) -> dict[str, float]:
        """Return the root mean square difference of the members' weights from their mean, by step."""
        self._ended.set()
        self._thread.join()
        self._look()
        steps = sorted(set.intersection(*(set(one) for one in self.weights)))
        return {
            str(step): float(np.sqrt(np.var([one[step] for one in self.weights], axis=0).mean()))
            for step in steps
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arms", default="", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--every", type=int, default=3, help="steps between two exchanges")
    parser.add_argument("--recipe", default="gridworld_grpo")
    parser.add_argument("--apart", action="store_true", help="follow the members' weights")
    parser.add_argument("--kill", action="store_true", help="kill the service and a member instead")
    parser.add_argument("--folder", type=Path, help="where runs are kept; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args()
    arms = args.arms or ("diloco" if args.kill else "one,alone,diloco,streaming,8bit")
    os.environ.setdefault(VARIABLE, secrets.token_hex(32))
    report = []
    with tempfile.TemporaryDirectory(prefix="asyncrl-trainers-") as temporary:
        # Its processes end with this one.
        start_fork_server(Path(temporary))
        for seed in map(int, args.seeds.split(",")):
            for arm in arms.split(","):
                folder = (args.folder or Path(temporary)) / f"{'kill' if args.kill else arm}-{seed}"
                folder.mkdir(parents=True)
                report.append(train(args, folder, arm, seed))
                print(json.dumps(report[-1], indent=2), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(all(one.get("checks", {}).values()) for one in report) else 1


def train(args: argparse.Namespace, folder: Path, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm to its end; return what came of it."""
    config = load_config(args.recipe, args.overrides)
    groups, steps = config.buffer.groups_per_step, config.train.num_steps
    common = [*args.overrides, f"run.seed={seed}"]
    start = time.monotonic()
    service = None
    count = args.members
    if arm in WITHOUT_SERVICE:
        more = [f"buffer.groups_per_step={count * groups}"] if arm == "one" else []
        members = [Member(folder, "member-0", args.recipe, [*common, *more])]
    else:
        service = Outer(folder)
        service.start()
        shared = [*common, f"outer.url={service.url}", f"outer.members={count}", f"outer.every={args.every}"]
        shared += [
            *ARMS[arm],
            *([f"env.num_tasks={groups * steps}", "train.checkpoint_every=2"] if args.kill else []),
            *(["train.checkpoint_every=1"] if args.apart else []),
        ]
        members = [
            Member(folder, f"member-{number}", args.recipe, [*shared, f"outer.member={number}"])
            for number in range(count)
        ]
    followed = Followed(members) if args.apart else None
    try:
        if args.kill and service is not None:
            disturb(service, members, steps)
        for member in members:
            member.finish()
        report = describe(arm, seed, members)
        if followed is not None:
            report["apart"] = followed.apart()
        report["wall_s"] = round(time.monotonic() - start, 1)
        if service is not None:
            report["rounds"] = service.status()["rounds"]
            report["checks"] = check(service, members, steps, together=arm != "gossip")
    finally:
        for member in members:
            member.end()
        if service is not None:
            service.process.terminate()
            service.process.wait(30)
    return report


def disturb(service: Outer, members: list[Member], steps: int) -> None:
    """Kill the service in the first third of the run and a member in the second; start both again."""
    wait_until(lambda: members[0].steps() >= steps // 3, RUN_S, members[0].process)
    print(f"killing the service at step {members[0].steps()}", flush=True)
    service.kill()
    time.sleep(5.0)
    service.start()
    last = members[-1]
    wait_until(lambda: last.steps() >= 2 * steps // 3 - 1, RUN_S, last.process)
    print(f"killing {last.run.name} at step {last.steps()}", flush=True)
    last.kill()
    last.resume()


def describe(arm: str, seed: int, members: list[Member]) -> dict[str, Any]:
    """Return what the runs of an arm came to."""
    summaries = [json.loads((member.run / "summary.json").read_text()) for member in members]
    metrics = [read_metrics(member.run) for member in members]
    files = [load_file(newest(member) / "model.safetensors") for member in members]
    numel = sum(tensor.size for tensor in files[0].values())

    def total(name: str) -> list[float]:
        return [sum(step.get(name, 0.0) for step in steps) for steps in metrics]

    return {
        "arm": arm,
        "seed": seed,
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}",
        "parameters": numel,
        "steps": [summary["steps"] for summary in summaries],
        "success_before": [summary["eval_before"]["success"] for summary in summaries],
        "success_after": [summary["eval_after"]["success"] for summary in summaries],
        "staleness_max": [summary["staleness"]["max"] for summary in summaries],
        "sent_mb": [round(one / 1e6, 2) for one in total("outer/sent_bytes")],
        "received_mb": [round(one / 1e6, 2) for one in total("outer/received_bytes")],
        "exchange_wait_s": [round(one, 1) for one in total("outer/wait_s")],
        "train_wall_s": [round(summary["train_wall_s"], 1) for summary in summaries],
    }


def newest(member: Member) -> Path:
    return complete_checkpoints(member.run / "checkpoints")[0][1]


def check(service: Outer, members: list[Member], steps: int, together: bool) -> dict[str, bool]:
    """Return what must hold of runs that trained one policy, with the same weights at the end if `together`."""
    weights = [load_file(newest(member) / "model.safetensors") for member in members]
    ledgers = [tasks_of(member.run / "ledger.sqlite") for member in members]
    counted = [one["counted"] for one in service.status()["members"]]
    played = [{task for task, state, _ in tasks if state in ("trained", "dropped")} for tasks in ledgers]
    trained = [{(task, step) for task, state, step in tasks if state == "trained"} for tasks in ledgers]
    checks = {
        "no task was played by two members": sum(map(len, played)) == len(set().union(*played)),
        "each task was trained in the step that the ledger says, and in no other": trained
        == [steps_of(member.run / "trajectories") for member in members],
        "each version's steps were counted once and to the end": all(
            version == steps for versions in counted for version in versions
        ),
    }
    if together:
        checks["all ended with the same weights"] = all(
            one.keys() == weights[0].keys()
            and all(np.array_equal(one[name], weights[0][name]) for name in one)
            for one in weights
        )
    return checks


def steps_of(trajectories: Path) -> set[tuple[str, int]]:
    """Return the tasks that were trained, and the versions at which their steps began."""
    rows = [row for path in trajectories.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return {(row["task"], row["step"] - 1) for row in rows}


def tasks_of(ledger: Path) -> list[tuple[str, str, int]]:
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
        return db.execute("SELECT id, state, step FROM tasks").fetchall()


def wait_until(true: Any, limit_s: float, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{' '.join(map(str, process.args))}: ended, or was too slow")  # type: ignore[arg-type]
        time.sleep(LOOK_S)


if __name__ == "__main__":
    raise SystemExit(main())
