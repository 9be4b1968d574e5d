"""Many rollout workers against one buffer service: nothing lost, nothing stale, memory flat.

    python scripts/bench/load_buffer.py [--workers 200] [--minutes 10] [--json OUT]
    python scripts/bench/load_buffer.py --workers 2000 --planned 1000000 --group-size 16 --tokens 8000 \
        --staleness 31 --episode-s 60 --longest 1.5

`asyncrl serve buffer` serves simulated rollout workers (`load_buffer_workers.py`: the real loop and client, one
connection each, episodes of random tokens) in a few processes, and a simulated trainer in this one that takes steps
and commits versions. Some groups carry no signal, some fail, and every `--kill-every` seconds one of the worker
processes gets SIGKILL and is started again. With `--planned` so many tasks wait from the start; those that still wait
at the end are abandoned. Meanwhile status is asked for four times a second, as the launcher does. Then the plan is
closed and worked off, and:

    every task was trained in exactly one step, or dropped or failed with a reason
    no lease is left, and no trained token was older than the staleness limit
    the service's memory is flat: the last tenth against the second tenth of the time

Exit code 0 when all of it holds. Prints latencies as the workers saw them: "lease" is asked for without waiting for
a slot, "take" and "commit" are the trainer's, "take" including the wait for groups. "in_service_ms" is what the same
calls took inside the service (`timed_buffer.py`), and "loop_late_ms" how late its event loop was: as a whole, and
without the time for which it waited for a processor that others, such as the workers, had. "memory_mib" says in the
second and the last tenth of the time what the service's memory is for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from report import write_report

from asyncrl.config import parse_config
from asyncrl.credentials import share_one_token
from asyncrl.data.codec import decode_group
from asyncrl.services.buffer.client import BufferClient
from asyncrl.types import Task

WORKERS = Path(__file__).with_name("load_buffer_workers.py")
TIMED = Path(__file__).with_name("timed_buffer.py")
TIMES = "times.json"
"""What the service leaves in its folder."""
LEASE_S = 30.0
TAKE_WAIT_S = 60.0
START_S = 60.0
STOP_S = 30.0
SAMPLE_S = 1.0
PLAN_AHEAD_STEPS = 20
STATUS_EVERY_S = 0.25
MEMORY_GROWTH = 0.1
"""Of the memory in the second tenth of the time that may be added by the last, besides `MEMORY_MIB`."""
MEMORY_MIB = 16.0


@dataclass
class Trainer:
    """Plans tasks, takes and commits steps, and remembers which task it trained in which."""

    client: BufferClient
    groups_per_step: int
    step_s: float
    wait_s: float
    """How long a batch may take to be complete."""
    ahead: int
    """Tasks planned before the first step and abandoned at the end; 0 to plan as they are needed."""
    trained: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    lags: Counter[int] = field(default_factory=Counter)
    latency_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    planned: int = 0
    planning_s: float = 0.0
    version: int = 0

    async def train(self, seconds: float) -> None:
        """Take steps for a while, then close the plan and take what is left of it."""
        end = time.monotonic() + seconds
        while True:
            if time.monotonic() < end:
                await self.plan()
            else:
                await self.client.close_plan(abandon=bool(self.ahead))
            if not await self._step():
                return

    async def plan(self) -> None:
        """Keep tasks planned for the next `PLAN_AHEAD_STEPS` steps, or all that are planned ahead."""
        wanted = self.ahead or (self.version + PLAN_AHEAD_STEPS) * self.groups_per_step
        if self.planned >= wanted:
            return
        start = time.perf_counter()
        number = wanted - self.planned + (0 if self.ahead else PLAN_AHEAD_STEPS * self.groups_per_step)
        await self.client.add_tasks([Task(f"task-{self.planned + i}", "load", i) for i in range(number)])
        self.planned += number
        self.planning_s += time.perf_counter() - start

    async def _step(self) -> bool:
        """Take one step; False when the plan is done."""
        start = time.perf_counter()
        groups = await self.client.take(self.version, self.wait_s)
        self.latency_s["take"].append(time.perf_counter() - start)
        if groups is None:
            raise SystemExit(
                f"step {self.version}: no batch within {self.wait_s:g} s, "
                f"waiting for {len(self.client.awaited)} groups"
            )
        if not groups:
            return False
        for group in map(decode_group, groups):
            self.trained[group.task.id].append(self.version)
            self.lags.update(self.version - t.min_version for t in group.usable)
        await asyncio.sleep(self.step_s)
        start = time.perf_counter()
        await self.client.commit(self.version + 1)
        self.latency_s["commit"].append(time.perf_counter() - start)
        self.version += 1
        return True


class WorkerProcesses:
    """The processes with the workers. One after the other is killed and started again."""

    def __init__(self, url: str, folder: Path, options: argparse.Namespace) -> None:
        self.url, self.folder, self.options = url, folder, options
        self.processes: list[subprocess.Popen[bytes]] = []
        self.outs: dict[int, Path] = {}
        self.kills = self.starts = 0

    def start(self) -> None:
        self.processes = [self._spawn(number) for number in range(self.options.processes)]

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        options = self.options
        self.outs[number] = self.folder / f"workers-{number}-{self.starts}.json"
        plan = {
            "url": self.url,
            "workers": [f"worker-{i}" for i in range(number, options.workers, options.processes)],
            "out": str(self.outs[number]),
            "episode_s": options.episode_s,
            "tokens": options.tokens,
            "longest": options.longest,
            "lease_s": LEASE_S,
        }
        self.starts += 1
        return subprocess.Popen([sys.executable, str(WORKERS), json.dumps(plan)])

    async def disturb(self) -> None:
        """Kill and restart workers forever."""
        while self.options.kill_every > 0:
            await asyncio.sleep(self.options.kill_every)
            number = await self._next_at_work()
            self.processes[number].kill()
            self.processes[number].wait(STOP_S)
            self.processes[number] = self._spawn(number)
            self.kills += 1

    async def _next_at_work(self) -> int:
        """Return the next process in turn of those that have put a group since they started: on a busy machine all
        would otherwise be killed before they do, and no batch would ever be complete."""
        turns = [(self.kills + i) % len(self.processes) for i in range(len(self.processes))]
        while not (found := [number for number in turns if self._has_put(number)]):
            await asyncio.sleep(STATUS_EVERY_S)
        return found[0]

    def _has_put(self, number: int) -> bool:
        out = self.outs[number]
        return out.exists() and "put" in json.loads(out.read_text())["calls"]

    def ended(self) -> list[str]:
        """Processes that ended by themselves: a worker has a bug or met an unexpected answer."""
        return [f"workers {i} ended with {p.poll()}" for i, p in enumerate(self.processes) if p.poll()]

    def stop(self) -> list[int]:
        """Drain the workers; return their exit codes."""
        deadline = time.monotonic() + STOP_S
        # One that has just been started would die of the signal that drains the others.
        while not all(out.exists() for out in self.outs.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in self.processes:
            process.terminate()
        try:
            return [process.wait(STOP_S) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def figures(self) -> tuple[Counter[str], dict[str, list[float]], int]:
        """Calls and latencies of all processes, those of killed ones up to a moment before, and lost leases."""
        calls, latency_s, lost = Counter[str](), defaultdict[str, list[float]](list), 0
        for path in self.folder.glob("workers-*.json"):
            report = json.loads(path.read_text())
            calls.update(report["calls"])
            lost += report["leases_lost"]
            for verb, values in report["latency_s"].items():
                latency_s[verb] += values
        return calls, latency_s, lost


@contextlib.contextmanager
def buffer_service(folder: Path, options: argparse.Namespace) -> Any:
    """Start `asyncrl serve buffer` in a run folder; yields its process and its address."""
    config = parse_config(
        {
            "model": {"path": "none"},
            "env": {"name": "gridworld"},
            # The longest trajectory has one and a half times as many.
            "engine": {"max_model_len": 2 * options.tokens},
            "buffer": {"groups_per_step": options.groups_per_step, "max_staleness": options.staleness},
            "rollout": {"group_size": options.group_size, "lease_s": LEASE_S},
        }
    )
    (folder / "config.json").write_text(config.model_dump_json())
    ready = folder / "ready.json"
    argv = ["serve", "buffer", "--folder", str(folder), "--ready-file", str(ready)]
    process = subprocess.Popen([sys.executable, str(TIMED), str(folder / TIMES), *argv])
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the buffer service did not start")
            time.sleep(0.05)
        yield process, json.loads(ready.read_text())["url"]
        process.terminate()
        process.wait(STOP_S)
    finally:
        process.kill()
        process.wait(STOP_S)


async def watch(service: psutil.Process, workers: WorkerProcesses, rss_mib: list[float]) -> None:
    """Record the service's memory; raise when workers end by themselves."""
    while True:
        if ended := workers.ended():
            raise SystemExit("; ".join(ended))
        rss_mib.append(service.memory_info().rss / 2**20)
        await asyncio.sleep(SAMPLE_S)


async def ask_status(client: BufferClient, latency_s: list[float]) -> None:
    """Ask for the counts as often as the launcher does, forever."""
    while True:
        start = time.perf_counter()
        await client.status()
        latency_s.append(time.perf_counter() - start)
        await asyncio.sleep(STATUS_EVERY_S)


async def load(url: str, pid: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Apply the load to the service; return the measurements."""
    client, service = BufferClient(url), psutil.Process(pid)
    workers = WorkerProcesses(url, folder, options)
    longest_s = options.longest * options.episode_s
    trainer = Trainer(
        client, options.groups_per_step, options.step_s, TAKE_WAIT_S + 2 * longest_s, options.planned
    )
    rss_mib: list[float] = []
    await trainer.plan()
    workers.start()
    watcher = asyncio.create_task(watch(service, workers, rss_mib))
    asking = asyncio.create_task(ask_status(client, trainer.latency_s["status"]))
    start, cpu_before = time.monotonic(), service.cpu_times()
    try:
        disturber = asyncio.create_task(workers.disturb())
        training = asyncio.create_task(trainer.train(60 * options.minutes))
        await asyncio.wait({training, watcher, asking}, return_when=asyncio.FIRST_COMPLETED)
        for ended in (watcher, asking):
            if ended.done():
                training.cancel()
                ended.result()
        await training
        seconds = time.monotonic() - start
        cpu = service.cpu_times()
        status = await client.status()
    finally:
        for task in (watcher, disturber, asking):
            task.cancel()
        codes = await asyncio.to_thread(workers.stop)
        await client.close()
    calls, latency_s, lost = workers.figures()
    return {
        "seconds": round(seconds, 1),
        "steps": trainer.version,
        "planned": trainer.planned,
        "planning_s": round(trainer.planning_s, 1),
        "trained": dict(trainer.trained),
        "lags": dict(trainer.lags),
        "status": status,
        "calls": dict(calls) | {verb: len(values) for verb, values in trainer.latency_s.items()},
        "leases_lost": lost,
        "kills": workers.kills,
        "worker_exit_codes": codes,
        "latency_ms": {verb: percentiles(values) for verb, values in (latency_s | trainer.latency_s).items()},
        "rss_mib": rss_mib,
        "service_cpu_share": round(
            (cpu.user + cpu.system - cpu_before.user - cpu_before.system) / seconds, 3
        ),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and the longest, in milliseconds."""
    ordered = sorted(values)
    at = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": len(ordered) - 1}
    return {name: round(1e3 * ordered[place], 2) for name, place in at.items()} if ordered else {}


def judge(seen: dict[str, Any], rows: list[tuple[str, str, int, str]], staleness: int) -> list[str]:
    """Return what is wrong. `rows` are the ledger's tasks: id, state, step, reason. staleness: the limit."""
    problems = []
    ledger = {task: [step] for task, state, step, _ in rows if state == "trained"}
    if len(rows) != seen["planned"]:
        problems.append(f"{seen['planned']} tasks were planned, the ledger holds {len(rows)}")
    twice = [task for task, steps in seen["trained"].items() if len(steps) > 1]
    if twice:
        problems.append(f"{len(twice)} tasks were trained more than once, such as {twice[0]}")
    if ledger != seen["trained"]:
        wrong = [t for t in ledger.keys() | seen["trained"].keys() if ledger.get(t) != seen["trained"].get(t)]
        problems.append(f"{len(wrong)} tasks were trained otherwise than the ledger says, such as {wrong[0]}")
    open_tasks = Counter(state for _, state, _, _ in rows if state not in ("trained", "dropped", "failed"))
    problems += [f"{count} tasks are still {state}" for state, count in open_tasks.items()]
    silent = [task for task, state, _, why in rows if state in ("dropped", "failed") and not why]
    if silent:
        problems.append(f"{len(silent)} tasks were lost without a reason, such as {silent[0]}")
    if seen["status"]["in_flight"]:
        problems.append(f"{seen['status']['in_flight']} leases are left")
    if max(seen["lags"], default=0) > staleness:
        problems.append(f"a token was {max(seen['lags'])} versions old, the bound is {staleness}")
    first, last = memory(seen["rss_mib"])
    if last > first * (1 + MEMORY_GROWTH) + MEMORY_MIB:
        problems.append(f"memory grew from {first:.1f} to {last:.1f} MiB")
    if any(seen["worker_exit_codes"]):
        problems.append(f"worker processes ended with {seen['worker_exit_codes']}")
    return problems


def memory(rss_mib: list[float]) -> tuple[float, float]:
    """Mean memory in the second and in the last tenth of the samples."""
    tenth = max(1, len(rss_mib) // 10)
    return statistics.fmean(rss_mib[tenth : 2 * tenth] or rss_mib), statistics.fmean(rss_mib[-tenth:])


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start everything, load, stop; return the report with its problems."""
    with tempfile.TemporaryDirectory(prefix="load-buffer-") as name:
        folder = Path(name)
        with buffer_service(folder, options) as (process, url):
            seen = asyncio.run(load(url, process.pid, folder, options))
        db = sqlite3.connect(folder / "ledger.sqlite")
        rows = db.execute("SELECT id, state, step, reason FROM tasks ORDER BY seq").fetchall()
        db.close()
        times = json.loads((folder / TIMES).read_text())
        ledger_mib = (folder / "ledger.sqlite").stat().st_size / 2**20
    problems = judge(seen, rows, options.staleness) + (
        [f"the service ended with {process.returncode}"] if process.returncode else []
    )
    first, last = memory(seen["rss_mib"])
    samples = seen["rss_mib"]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}",
        "workers": options.workers,
        "group": f"{options.group_size} trajectories of {options.tokens} tokens",
        "seconds": seen["seconds"],
        "planning_s": seen["planning_s"],
        "steps": seen["steps"],
        "tasks": dict(Counter(state for _, state, _, _ in rows)),
        "reasons": dict(Counter(why for _, state, _, why in rows if state in ("dropped", "failed"))),
        "attempts": seen["status"]["admitted"],
        "leases_expired": seen["status"]["expired"],
        "worker_processes_killed": seen["kills"],
        "groups_refused": seen["leases_lost"],
        "max_staleness_seen": max(seen["lags"], default=0),
        "calls_per_s": {
            verb: round(count / seen["seconds"], 1) for verb, count in sorted(seen["calls"].items())
        },
        "latency_ms": seen["latency_ms"],
        "in_service_ms": {call: percentiles(values) for call, values in sorted(times["calls"].items())},
        "loop_late_ms": {
            "all": percentiles([late for late, _, _ in times["late"]]),
            "without waiting for a processor": percentiles(
                [late - waited for late, _, waited in times["late"]]
            ),
            "on a processor": percentiles([ran for _, ran, _ in times["late"]]),
        },
        "rss_mib": {
            "first": round(first, 1),
            "middle": round(samples[len(samples) // 2], 1),
            "last": round(last, 1),
            "max": round(max(samples), 1),
        },
        "memory_mib": {
            name: [round(one / 2**20, 1) for one in memory(samples)]
            for name, samples in times["memory"].items()
        },
        "service_cpu_share": seen["service_cpu_share"],
        "ledger_mib": round(ledger_mib, 1),
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workers", type=int, default=200, help="rollout workers (default 200)")
    add("--minutes", type=float, default=10.0, help="time until the plan is closed (default 10)")
    add("--processes", type=int, default=4, help="processes the workers are spread over (default 4)")
    add("--episode-s", type=float, default=2.0, help="mean time a group takes (default 2)")
    add("--tokens", type=int, default=500, help="mean tokens of a trajectory (default 500)")
    add("--longest", type=float, default=6.0, help="longest time of a group, in mean times (default 6)")
    add("--group-size", type=int, default=4, help="trajectories of a group (default 4)")
    add("--groups-per-step", type=int, default=64, help="(default 64)")
    add("--staleness", type=int, default=3, help="buffer.max_staleness (default 3)")
    add("--planned", type=int, default=0, help="tasks planned before the start; 0 plans them as needed")
    add("--step-s", type=float, default=0.1, help="time a training step takes (default 0.1)")
    add("--kill-every", type=float, default=60.0, help="seconds between kills of workers; 0 for none")
    add("--json", type=Path, metavar="OUT", help="write the report there as well")
    options = parser.parse_args()
    share_one_token()
    report = run(options)
    write_report(report, options.json)
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
