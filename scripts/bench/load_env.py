"""Load one environment service for minutes and look for leaks of processes, user ids, files and memory.

    python scripts/bench/load_env.py [--minutes 10] [--grid 500] [--code 64] [--processes 2] [--json OUT]

Plays that many gridworld sessions and sandboxed code sessions (math_tool, whose programs fork, leave processes behind,
fill files and memory, flood their output and never end) at once through `EnvClient`, with a pause before each step as a
model would make. Idle after a warm-up is compared with idle after the load; then the service is stopped and nothing of
it may be left. Exit code 1 when something leaks or a session misbehaves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from report import write_report

from asyncrl.credentials import bearer, share_one_token
from asyncrl.env.hosting.runtime import HELPERS
from asyncrl.env.protocol import Action, Step, ToolCall
from asyncrl.errors import EpisodeError
from asyncrl.services.env.client import EnvClient, EnvSession
from asyncrl.services.http.client import HttpClient
from asyncrl.types import Task

STEP_TIMEOUT_S = 120.0
SETTLE_S = 60.0
SAMPLE_S = 2.0
CODE_CONFIG = {"time_limit_s": 10.0}
PROGRAMS_PER_SESSION = 3
MEMORY_GROWTH = 0.1
"""Of the idle memory before the load that may be added, besides `MEMORY_MIB`."""
MEMORY_MIB = 16.0
KEPT_LATENCIES = 50_000

PROGRAMS = (
    ("print(6 * 7)", "42"),
    ("open('f', 'w').write('x' * 1000000)\nprint(len(open('f').read()))", "1000000"),
    ("import os\nfor _ in range(4):\n    if os.fork() == 0: os._exit(0)\nprint('forked')", "forked"),
    ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('left')", "left"),
    ("print(len(bytearray(40 * 2**20)))", "41943040"),
    ("for _ in range(20000): print('y' * 50)", "yyyy"),
    ("raise SystemExit(3)", "error: exit status 3"),
)
SLEEPER = ("import time\ntime.sleep(600)", "error: time limit exceeded")
SLEEPER_SHARE = 0.02


@dataclass
class Record:
    """Observations of the players."""

    episodes: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    latency_s: dict[str, list[float]] = field(default_factory=lambda: {"grid": [], "code": []})

    def add_step(self, kind: str, latency_s: float) -> None:
        """Count a step; keep an even sample of latencies."""
        self.steps[kind] += 1
        kept = self.latency_s[kind]
        if len(kept) < KEPT_LATENCIES:
            kept.append(latency_s)
        elif (place := random.randrange(self.steps[kind])) < KEPT_LATENCIES:
            kept[place] = latency_s

    def summary(self) -> dict[str, Any]:
        return {
            kind: {
                "episodes": self.episodes[kind],
                "steps": self.steps[kind],
                "step_ms": {f"p{p}": _percentile(values, p) for p in (50, 90, 99)},
            }
            for kind, values in self.latency_s.items()
        }


@dataclass
class Load:
    """Players against one service."""

    client: EnvClient
    think_s: float
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    record: Record = field(default_factory=Record)

    async def play(self, kind: str, number: int) -> None:
        """Play sessions of one kind until told to stop; each ends when the next has taken its first step."""
        rng = random.Random(f"{kind}-{number}")
        last: EnvSession | None = None
        while not self.stop.is_set():
            session = None
            try:
                session = await self._open(kind, rng)
                await (self._grid if kind == "grid" else self._code)(session, last, rng)
                self.record.episodes[kind] += 1
            except EpisodeError as error:
                self.record.wrong[f"{kind}: {type(error).__name__}: {str(error)[:200]}"] += 1
                await self._close(last)
            last = session
        await self._close(last)

    async def _open(self, kind: str, rng: random.Random) -> EnvSession:
        seed = rng.randrange(10**9)
        if kind == "grid":
            return await self.client.open(Task(f"g{seed}", "gridworld", seed), {})
        return await self.client.open(Task(f"c{seed}", "math_tool", seed), CODE_CONFIG)

    async def _grid(self, session: EnvSession, last: EnvSession | None, rng: random.Random) -> None:
        words, reward = session.messages[0]["content"].split(), 0.0
        for turn in range(session.max_turns):
            step = await self._step("grid", session, turn, Action(words[1]), rng)
            reward += step.reward
            if turn == 0:
                await self._close(last)
            if step.done:
                break
            words = step.messages[0]["content"].split()
        if reward != 1.0:
            self.record.wrong[f"grid: reward {reward}"] += 1

    async def _code(self, session: EnvSession, last: EnvSession | None, rng: random.Random) -> None:
        for turn in range(PROGRAMS_PER_SESSION):
            program, expected = SLEEPER if rng.random() < SLEEPER_SHARE else rng.choice(PROGRAMS)
            call = ToolCall(f"call-{turn}", "python", {"code": program})
            step = await self._step("code", session, turn, Action("", (call,)), rng)
            if turn == 0:
                await self._close(last)
            shown = step.messages[0]["content"]
            if not shown.startswith(expected):
                self.record.wrong[f"code: {program[:40]!r} gave {shown[:80]!r}"] += 1

    async def _close(self, session: EnvSession | None) -> None:
        if session is not None:
            await session.close()

    async def _step(
        self, kind: str, session: EnvSession, turn: int, action: Action, rng: random.Random
    ) -> Step:
        await asyncio.sleep(rng.uniform(0, 2 * self.think_s))
        start = time.monotonic()
        step = await session.step(turn, action, STEP_TIMEOUT_S)
        self.record.add_step(kind, time.monotonic() - start)
        return step


class Footprint:
    """What a service and everything it started hold of this machine."""

    def __init__(self, pid: int, temporary: Path) -> None:
        self.service = psutil.Process(pid)
        self.temporary = temporary
        self.seen: set[psutil.Process] = set()

    def measure(self) -> dict[str, float]:
        """Count processes, threads, open files, locked sandbox user ids and files; sum resident memory."""
        tree = [self.service, *self.service.children(recursive=True)]
        self.seen.update(tree)
        found: Counter[str] = Counter(processes=len(tree), user_ids=_user_ids({p.pid for p in tree}))
        memory = 0
        for process in tree:
            try:
                with process.oneshot():
                    memory += process.memory_info().rss
                    found["threads"] += process.num_threads()
                    found["open_files"] += process.num_fds()
            except psutil.Error:
                continue
        found["temporary_files"] = sum(1 for _ in self.temporary.rglob("*"))
        return dict(found) | {"rss_mib": round(memory / 2**20, 1)}

    def left(self) -> list[str]:
        """Processes of the tree that are still there."""
        return [f"{p.pid} {p.name()}" for p in self.seen if p.is_running() and p.status() != "zombie"]


def _user_ids(pids: set[int]) -> int:
    """Sandbox user ids these processes hold: bytes of the lock file they have locked."""
    held = 0
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        # number: POSIX ADVISORY WRITE pid device:inode first last
        if fields[1] == "POSIX" and int(fields[4]) in pids and fields[7] != "EOF":
            held += int(fields[7]) - int(fields[6]) + 1
    return held


def start_service(folder: Path, options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    """Start the service as a process with its own temporary folder; return it and its URL."""
    (folder / "tmp").mkdir()
    ready = folder / "ready.json"
    settings = {
        "ready_file": str(ready),
        "processes": options.processes,
        "max_sessions": 2 * (options.grid + options.code),
        "limits": {"math_tool": 2 * options.code},
        "envs": {"gridworld": {}, "math_tool": CODE_CONFIG},
    }
    code = f"from asyncrl.services.env.service import serve_env; serve_env(**{settings!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 90
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit("the service did not start")
        time.sleep(0.05)
    return process, json.loads(ready.read_text())["url"]


async def load(
    url: str, footprint: Footprint, options: argparse.Namespace, seconds: float
) -> tuple[Record, dict[str, float], dict[str, float]]:
    """Play for a while, then let every session end. Returns what was seen, the peaks and the idle footprint."""
    client, http = EnvClient([url]), HttpClient(url, bearer(None, "env"))
    work = Load(client, options.think_s)
    kinds = ["grid"] * options.grid + ["code"] * options.code
    players = [asyncio.create_task(work.play(kind, number)) for number, kind in enumerate(kinds)]
    samples: list[dict[str, float]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(min(SAMPLE_S, max(0.0, deadline - time.monotonic())))
        status = await http.get("/v1/status")
        samples.append({"sessions": status["sessions"], **await asyncio.to_thread(footprint.measure)})
    peaks = {name: max(sample[name] for sample in samples) for name in samples[0]}
    # The first quarter is for ramping up.
    settled = samples[len(samples) // 4 :]
    for name in ("sessions", "user_ids"):
        peaks[f"{name}_at_least"] = min(sample[name] for sample in settled)
    work.stop.set()
    await asyncio.gather(*players)
    # Its connections would be kept alive beyond the measurement, as many as the load happened to need.
    await client.close()
    idle = await settle(http, footprint)
    await http.close()
    return work.record, peaks, idle


async def settle(http: HttpClient, footprint: Footprint) -> dict[str, float]:
    """Wait until no session is held and nothing shrinks anymore; return the footprint and the service's counts."""
    deadline = time.monotonic() + SETTLE_S
    last: dict[str, float] = {}
    while True:
        await asyncio.sleep(SAMPLE_S)
        status = await http.get("/v1/status")
        found = await asyncio.to_thread(footprint.measure)
        calm = not status["held"] and found["user_ids"] == 0 and found["processes"] == last.get("processes")
        if calm or time.monotonic() > deadline:
            counts = {key: status[key] for key in ("sessions", "failed", "lost", "reaped", "close_failed")}
            replaced = sum(status.get("workers_replaced", {}).values())
            return found | counts | {"held": sum(status["held"].values()), "workers_replaced": replaced}
        last = found


def judge(report: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Return what is wrong."""
    before, after, peaks = report["idle_before"], report["idle_after"], report["peak"]
    problems = [f"{count} times {what}" for what, count in report["wrong"].items()]
    # A connection may come or go, and helper threads stay once started; a leak would be one for each session played.
    slack = {"open_files": 4, "threads": max(1, options.processes) * HELPERS}
    for name in ("processes", "user_ids", "temporary_files", "open_files", "threads"):
        if after[name] > before[name] + slack.get(name, 0):
            problems.append(f"{name}: {before[name]} before the load, {after[name]} after it")
    allowed = before["rss_mib"] * (1 + MEMORY_GROWTH) + MEMORY_MIB
    if after["rss_mib"] > allowed:
        problems.append(f"rss_mib: {before['rss_mib']} before the load, {after['rss_mib']} after it")
    for name in ("sessions", "held", "failed", "lost", "reaped", "close_failed", "workers_replaced"):
        if after[name]:
            problems.append(f"{name}: {after[name]} after the load")
    if peaks["sessions_at_least"] < options.grid + options.code:
        problems.append(f"at one moment only {peaks['sessions_at_least']} sessions were open")
    if peaks["user_ids_at_least"] < options.code and os.geteuid() == 0:
        problems.append(f"at one moment only {peaks['user_ids_at_least']} sandboxes were there")
    problems += [f"still running: {process}" for process in report["left_running"]]
    if report["files_left"]:
        problems.append(f"files left: {report['files_left'][:5]}")
    return problems


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, load, stop; return the report with its verdict."""
    seconds = options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="load-env-") as name:
        folder = Path(name)
        process, url = start_service(folder, options)
        try:
            footprint = Footprint(process.pid, folder / "tmp")
            _, _, before = asyncio.run(load(url, footprint, options, min(45.0, seconds / 2)))
            started = time.monotonic()
            record, peaks, after = asyncio.run(load(url, footprint, options, seconds))
            loaded_s = time.monotonic() - started
        finally:
            process.terminate()
            code = process.wait(60)
        time.sleep(1.0)
        files_left = [str(path.relative_to(folder)) for path in (folder / "tmp").rglob("*")]
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "options": vars(options) | {"json": str(options.json or "")},
        "loaded_s": round(loaded_s, 1),
        "played": record.summary(),
        "wrong": dict(record.wrong),
        "idle_before": before,
        "peak": peaks,
        "idle_after": after,
        "exit_code": code,
        "left_running": footprint.left(),
        "files_left": files_left,
    }
    problems = judge(report, options) + ([f"the service ended with exit code {code}"] if code else [])
    return report | {"problems": problems, "verdict": "leaks or errors" if problems else "clean"}


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1) if ordered else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--grid", type=int, default=500, help="gridworld sessions at once (default 500)")
    parser.add_argument("--code", type=int, default=64, help="sandboxed code sessions at once (default 64)")
    parser.add_argument(
        "--processes", type=int, default=2, help="worker processes of the service (default 2)"
    )
    parser.add_argument("--think-s", type=float, default=0.5, help="mean pause before a step (default 0.5)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the report there as well")
    options = parser.parse_args()
    share_one_token()
    report = run(options)
    write_report(report, options.json)
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
