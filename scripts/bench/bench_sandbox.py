"""Speed of the sandbox backends, compared with plain subprocess in the same run.

    python scripts/bench/bench_sandbox.py [--json OUT] [--runs 200] [--rounds 5] [--sessions 64]

Every backend runs the same short program, RUNS times in each round, four at a time; rounds go round-robin over the
backends, so that a slow moment of the machine meets all of them, and the median round counts. Plain subprocess is
`subprocess.run` in four threads, without any code of asyncrl. Then SESSIONS sessions are held open at once, and last
as many episodes at once open a warm session for one program and close it, with and without its being passed on.
Exit status 1 when bubblewrap makes less than 0.4 or the zygote less than 1.1 of plain subprocess's runs/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from asyncrl.envs.sandboxed import LazySandbox
from asyncrl.sandbox.backends import AUTO_ORDER, open_sandbox, probe
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import Sandbox, SandboxSpec

ARGV = ["/usr/bin/python3", "-I", "-S", "-c", "print(1)"]
AT_ONCE = 4
REQUIRED = {"bubblewrap": 0.4, "zygote": 1.1}
PLAIN = "plain subprocess"


def plain_round(runs: int) -> float:
    """Runs per second."""
    environment = {"PATH": "/usr/bin:/bin"}

    def one(_: int) -> None:
        done = subprocess.run(ARGV, capture_output=True, env=environment, check=True)
        assert done.stdout == b"1\n"

    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(runs)))
    return runs / (time.perf_counter() - started)


async def one(name: str, box: Sandbox) -> None:
    result = await (box.exec(code="print(1)") if name == "zygote" else box.exec(ARGV))
    if result.stdout != b"1\n":
        raise RuntimeError(f"{name}: unexpected result {result}")


async def backend_round(name: str, boxes: list[Sandbox], runs: int) -> tuple[float, list[float]]:
    """Runs per second, and each run's seconds."""
    latencies: list[float] = []

    async def worker(box: Sandbox) -> None:
        for _ in range(runs // AT_ONCE):
            started = time.perf_counter()
            await one(name, box)
            latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*map(worker, boxes))
    return len(latencies) / (time.perf_counter() - started), latencies


async def measure_speed(names: list[str], runs: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median runs/s of every backend, its part of plain subprocess's, and the median run in milliseconds."""
    boxes = {n: [await open_sandbox(n, allow_unsafe=True) for _ in range(AT_ONCE)] for n in names}
    rates: dict[str, list[float]] = {name: [] for name in [PLAIN, *names]}
    latencies: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        await backend_round(name, boxes[name], AT_ONCE)
    for _ in range(rounds):
        rates[PLAIN].append(plain_round(runs))
        for name in names:
            rate, taken = await backend_round(name, boxes[name], runs)
            rates[name].append(rate)
            latencies[name] += taken
    for opened in boxes.values():
        for box in opened:
            await box.stop()
    plain = statistics.median(rates[PLAIN])
    table = {
        name: {"runs_per_s": statistics.median(values), "of_plain": statistics.median(values) / plain}
        for name, values in rates.items()
    }
    for name, values in latencies.items():
        table[name]["median_ms"] = statistics.median(values) * 1000
    return table


def tree_memory_bytes() -> int:
    """Unique memory of every process below this one."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_full_info().uss
        except psutil.Error:
            continue
    return total


async def measure_sessions(name: str, count: int) -> dict[str, float]:
    """Start `count` sessions, run a program in all of them at once, stop them; what is left must be nothing."""
    await LauncherClient.shared()
    processes = len(psutil.Process().children(recursive=True))
    memory = tree_memory_bytes()
    descriptors = len(os.listdir("/proc/self/fd"))
    started = time.perf_counter()
    boxes = list(await asyncio.gather(*(open_sandbox(name, SandboxSpec()) for _ in range(count))))
    start_s = time.perf_counter() - started
    shells = await asyncio.gather(*(box.open_process(["bash"]) for box in boxes)) if name != "zygote" else []
    for shell in shells:
        await shell.send(b"echo ready\n")
        await shell.read_until(b"ready\n", 30)
    held = (tree_memory_bytes() - memory) / count
    started = time.perf_counter()
    await asyncio.gather(*(one(name, box) for box in boxes))
    exec_s = time.perf_counter() - started
    started = time.perf_counter()
    await asyncio.gather(*(box.stop() for box in boxes))
    stop_s = time.perf_counter() - started
    await asyncio.sleep(0.3)
    return {
        "sessions": count,
        "start_s": start_s,
        "memory_mib_each": held / 2**20,
        "exec_all_s": exec_s,
        "stop_s": stop_s,
        "processes_left": len(psutil.Process().children(recursive=True)) - processes,
        "descriptors_left": len(os.listdir("/proc/self/fd")) - descriptors,
    }


async def measure_episodes(count: int, *, passed_on: bool) -> float:
    """Return the seconds that `count` episodes at once take, after as many others."""

    async def episode() -> None:
        box = LazySandbox("zygote", SandboxSpec(), warm=True, fresh=not passed_on)
        try:
            await one("zygote", await box.open())
        finally:
            await box.close()

    await asyncio.gather(*(episode() for _ in range(count)))
    started = time.perf_counter()
    await asyncio.gather(*(episode() for _ in range(count)))
    return time.perf_counter() - started


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    names = [n for n in ("subprocess", "zygote", *AUTO_ORDER) if (await probe(n)).works]
    speed = await measure_speed(names, arguments.runs, arguments.rounds)
    sessions = {
        n: await measure_sessions(n, arguments.sessions) for n in ("bubblewrap", "zygote") if n in names
    }
    episodes = {}
    if "zygote" in names:
        episodes = {
            "each its own": await measure_episodes(arguments.sessions, passed_on=False),
            "passed on": await measure_episodes(arguments.sessions, passed_on=True),
        }
    await LauncherClient.close_shared()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    return {
        "machine": machine,
        "at_once": AT_ONCE,
        "speed": speed,
        "sessions": sessions,
        "episodes_s": episodes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there as well")
    parser.add_argument("--runs", type=int, default=200, help="runs of each backend in a round (default 200)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=64)
    arguments = parser.parse_args()
    report = asyncio.run(run(arguments))
    print(f"{report['machine']}; {AT_ONCE} programs at a time\n")
    for name, row in report["speed"].items():
        latency = f"{row['median_ms']:8.1f} ms" if "median_ms" in row else " " * 11
        print(f"{name:18} {row['runs_per_s']:8.1f} runs/s  {row['of_plain']:5.2f} of plain {latency}")
    for name, row in report["sessions"].items():
        print(f"\n{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()))
    for name, seconds in report["episodes_s"].items():
        print(f"\n{arguments.sessions} episodes at once, warm sessions, {name}: {seconds:.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    slow = [
        n for n, least in REQUIRED.items() if n in report["speed"] and report["speed"][n]["of_plain"] < least
    ]
    left = [
        n for n, row in report["sessions"].items() if row["processes_left"] > 0 or row["descriptors_left"] > 0
    ]
    for name in slow:
        print(f"\nFAILED: {name} makes less than {REQUIRED[name]} of plain subprocess's runs/s")
    for name in left:
        print(f"\nFAILED: {name} left processes or descriptors behind")
    return 1 if slow or left else 0


if __name__ == "__main__":
    sys.exit(main())
