"""Throughput of the buffer service over HTTP, compared with bare SQLite, in one run.

    python scripts/bench/bench_buffer.py [--seconds 4] [--rounds 1] [--json OUT] [--peer COMMAND]

One client puts and takes trajectories of 1 kB, 32 kB and 1 MB, one at a time and in batches of 32. "put" and "get"
are timed separately and together; leases and commits, which every real run also pays, are timed as "lease" and
"commit". Bare SQLite (WAL, synchronous=NORMAL, one transaction a put) writes and reads the same bytes in process,
without HTTP, checks or bookkeeping.

--peer COMMAND measures another system in the same run, from its own virtual environment. The command gets one more
argument, {"sizes": {name: bytes}, "batches": [...], "seconds": ...} as JSON, and prints as its last line a JSON
list of {"system", "size", "batch", "items_per_s", "median_items_per_s", "mb_per_s", "put_per_s", "get_per_s"}.

"median" is the rate by the median call, which other work on the machine disturbs less than the mean. With --rounds all
systems take turns, and each figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import shlex
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.buffer.ledger import LedgerSettings
from asyncrl.credentials import share_one_token
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.data.memory import keep_freed_memory
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.buffer.service import serve_buffer
from asyncrl.types import Group, Lease, Status, Task, Trajectory, Turn

try:
    from uvloop import run  # what the services run on where it is installed
except ImportError:
    from asyncio import run  # type: ignore[assignment]

SIZES = {"1 kB": 1_000, "32 kB": 32_000, "1 MB": 1_000_000}
BATCHES = (1, 32)
BYTES_PER_TOKEN = 13
OVERHEAD_BYTES = 380
START_S = 60.0
PEER_TIMEOUT_S = 900.0
MAX_ROUNDS = 2000


@dataclass
class Timer:
    """Seconds by phase, one entry a call."""

    phases: dict[str, list[float]] = field(default_factory=dict)

    async def timed(self, phase: str, call: Awaitable[Any]) -> Any:
        start = time.perf_counter()
        answer = await call
        self.phases.setdefault(phase, []).append(time.perf_counter() - start)
        return answer

    def add(self, phase: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        answer = call()
        self.phases.setdefault(phase, []).append(time.perf_counter() - start)
        return answer

    def result(self, name: str, size: str, batch: int, num_bytes: int) -> dict[str, Any]:
        """Items per second from the mean and from the median, and the median of one call in milliseconds."""
        middle_s = sum(statistics.median(self.phases[phase]) for phase in ("put", "get")) / batch
        mean_s = {phase: statistics.fmean(times) / batch for phase, times in self.phases.items()}
        both_s = mean_s["put"] + mean_s["get"]
        return {
            "system": name,
            "size": size,
            "batch": batch,
            "calls": len(self.phases["put"]),
            "items_per_s": 1 / both_s,
            "median_items_per_s": 1 / middle_s,
            "mb_per_s": num_bytes / both_s / 1e6,
            **{f"{phase}_per_s": 1 / seconds for phase, seconds in mean_s.items()},
            **{f"{phase}_median_ms": statistics.median(times) * 1e3 for phase, times in self.phases.items()},
        }


def make_group(lease: Lease, num_bytes: int) -> Group:
    """A group of one trajectory that takes about `num_bytes` on the wire."""
    length = max(2, (num_bytes - OVERHEAD_BYTES) // BYTES_PER_TOKEN)
    rng = np.random.default_rng(0)
    mask = np.arange(length) >= length // 4
    trajectory = Trajectory(
        task_id=lease.task.id,
        episode_index=0,
        token_ids=rng.integers(0, 150_000, length, dtype=np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -rng.random(length), 0.0).astype(np.float32),
        versions=np.where(mask, lease.version, -1).astype(np.int32),
        turns=(Turn(length // 4, length, 1.0),),
        reward=1.0,
        status=Status.FINISHED,
    )
    return Group(lease.id, lease.task, lease.version, (trajectory,))


async def bench_service(
    url: str, num_bytes: int, batch: int, seconds: float, start: int
) -> tuple[Timer, int]:
    """Lease, put, take and commit `batch` groups repeatedly. `start` is the version; return the new one."""
    client, timer, version = BufferClient(url), Timer(), start
    stop = time.perf_counter() + seconds
    try:
        while time.perf_counter() < stop and version - start < MAX_ROUNDS:
            await client.add_tasks([Task(f"{version}-{batch}-{i}", "bench") for i in range(batch)])
            leases = [await timer.timed("lease", client.lease("bench", 5.0)) for _ in range(batch)]
            groups = [make_group(lease, num_bytes) for lease in leases]
            put = client.put(groups[0]) if batch == 1 else client.put_many(groups)
            await timer.timed("put", put)
            assert await timer.timed("get", take(client, version)) == batch
            version += 1
            await timer.timed("commit", client.commit(version))
    finally:
        await client.close()
    return timer, version


async def take(client: BufferClient, version: int) -> int:
    """Take and decode a batch, as the trainer does; return its size."""
    return len([decode_group(body) for body in await client.take(version, 5.0) or ()])


def bench_sqlite(folder: Path, num_bytes: int, batch: int, seconds: float) -> Timer:
    """Insert and select the same bytes; rows are deleted untimed, as the service deletes what is trained."""
    db = sqlite3.connect(folder / f"bare-{num_bytes}-{batch}.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, body BLOB)")
    body = encode_group(make_group(Lease("1", Task("t", "bench"), 0, 0, 1, 1, 0.0), num_bytes))
    timer, stop, first = Timer(), time.perf_counter() + seconds, 0

    def put() -> None:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO items VALUES (?, ?)", [(first + i, body) for i in range(batch)])
        db.execute("COMMIT")

    def get() -> None:
        rows = db.execute(
            "SELECT body FROM items WHERE id >= ? AND id < ?", (first, first + batch)
        ).fetchall()
        assert len(rows) == batch

    while time.perf_counter() < stop and len(timer.phases.get("put", ())) < MAX_ROUNDS:
        timer.add("put", put)
        timer.add("get", get)
        db.execute("DELETE FROM items")
        first += batch
    db.close()
    return timer


def run_service(folder: Path, batch: int, seconds: float) -> list[dict[str, Any]]:
    """Start a buffer for this batch size, measure every trajectory size, stop it."""
    ready = folder / f"ready-{batch}.json"
    process = multiprocessing.get_context("spawn").Process(
        target=serve_buffer,
        args=(str(folder / f"ledger-{batch}.sqlite"), LedgerSettings(batch, 0, 1)),
        kwargs={"ready_file": str(ready)},
    )
    process.start()
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if time.monotonic() > deadline or not process.is_alive():
                raise SystemExit("the buffer service did not start")
            time.sleep(0.02)
        url, version, results = json.loads(ready.read_text())["url"], 0, []
        for size, num_bytes in SIZES.items():
            # The first calls open connections and files.
            _, version = run(bench_service(url, num_bytes, batch, seconds / 10, version))
            timer, version = run(bench_service(url, num_bytes, batch, seconds, version))
            results.append(timer.result("asyncrl over HTTP", size, batch, num_bytes))
        return results
    finally:
        process.terminate()
        process.join(START_S)


def run_peer(command: str, seconds: float) -> list[dict[str, Any]]:
    """Run another system's benchmark; see the module for its contract."""
    plan = json.dumps({"sizes": SIZES, "batches": BATCHES, "seconds": seconds})
    done = subprocess.run(
        [*shlex.split(command), plan], capture_output=True, text=True, timeout=PEER_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(results: list[dict[str, Any]]) -> None:
    heads = (("items/s", 10), ("median", 10), ("MB/s", 8), ("put/s", 9), ("get/s", 9))
    print(f"{'system':<23}{'size':>7}{'batch':>6}" + "".join(f"{head:>{width}}" for head, width in heads))
    for r in results:
        rates = (r["items_per_s"], r["median_items_per_s"], r["mb_per_s"], r["put_per_s"], r["get_per_s"])
        print(
            f"{r['system']:<23}{r['size']:>7}{r['batch']:>6}"
            + "".join(
                f"{rate:>{width}.{int(rate < 100)}f}" for rate, (_, width) in zip(rates, heads, strict=True)
            )
        )


def run_all(seconds: float, peer: str | None) -> list[dict[str, Any]]:
    """Measure every system once."""
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for batch in BATCHES:
            results += run_service(folder, batch, seconds)
            for size, num_bytes in SIZES.items():
                timer = bench_sqlite(folder, num_bytes, batch, seconds)
                results.append(timer.result("bare SQLite", size, batch, num_bytes))
    return results + (run_peer(peer, seconds) if peer else [])


def middle(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each figure's median over the rounds."""
    return [
        {k: statistics.median(r[k] for r in same) if type(v) is float else v for k, v in same[0].items()}
        for same in zip(*rounds, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each figure")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is measured")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--peer", metavar="COMMAND", help="benchmark of another system, see above")
    args = parser.parse_args()
    share_one_token()
    keep_freed_memory()  # as every service does
    results = middle([run_all(args.seconds, args.peer) for _ in range(args.rounds)])
    show(results)
    if args.json:
        machine = {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "cpus": multiprocessing.cpu_count(),
        }
        args.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
