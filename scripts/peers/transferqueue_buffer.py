"""TransferQueue measured by `scripts/bench/bench_buffer.py --peer`; needs its own virtual environment.

    python3 -m venv /tmp/transferqueue && /tmp/transferqueue/bin/pip install TransferQueue==0.1.11
    python scripts/bench/bench_buffer.py --peer "/tmp/transferqueue/bin/python scripts/peers/transferqueue_buffer.py"

One client puts and gets samples with the four arrays of a trajectory, in its default storage (SimpleStorage: memory of
two Ray actors, nothing durable), by both of its interfaces: "native" (put, get_meta, get_data, which finds samples that
are ready) and "kv" (kv_put or kv_batch_put, kv_batch_get, by key). What was got is compared with what was put once for
each size and batch. Samples are cleared untimed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict

BYTES_PER_TOKEN = 13
MAX_ROUNDS = 2000
FIELDS = ["token_ids", "loss_mask", "behavior_logprobs", "versions"]
Phases = dict[str, list[float]]


def make_samples(num_bytes: int, batch: int) -> TensorDict:
    """`batch` samples whose four arrays take about `num_bytes` each."""
    length = max(2, num_bytes // BYTES_PER_TOKEN)
    shape, generator = (batch, length), torch.Generator().manual_seed(0)
    fields = {
        "token_ids": torch.randint(0, 150_000, shape, dtype=torch.int32, generator=generator),
        "loss_mask": torch.rand(shape, generator=generator) > 0.25,
        "behavior_logprobs": -torch.rand(shape, generator=generator),
        "versions": torch.zeros(shape, dtype=torch.int32),
    }
    return TensorDict(fields, batch_size=[batch])


def timed(phases: Phases, phase: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    answer = call()
    phases.setdefault(phase, []).append(time.perf_counter() - start)
    return answer


def native(client: Any, samples: TensorDict, batch: int, number: int, phases: Phases) -> TensorDict:
    """Put, and get what is ready for a task."""
    timed(phases, "put", lambda: client.put(samples, partition_id="native"))

    def get() -> tuple[Any, TensorDict]:
        meta = client.get_meta(FIELDS, batch, "native", mode="fetch", task_name="train")
        return meta, client.get_data(meta)

    meta, got = timed(phases, "get", get)
    client.clear_samples(meta)
    return got


def by_key(client: Any, samples: TensorDict, batch: int, number: int, phases: Phases) -> TensorDict:
    """Put and get under given keys."""
    keys = [f"{number}-{index}" for index in range(batch)]
    if batch == 1:
        one = {name: samples[name][0] for name in FIELDS}
        timed(phases, "put", lambda: tq.kv_put(keys[0], "kv", fields=one))
    else:
        timed(phases, "put", lambda: tq.kv_batch_put(keys, "kv", fields=samples))
    got = timed(phases, "get", lambda: tq.kv_batch_get(keys, "kv"))
    tq.kv_clear(keys, "kv")
    return got


def measure(
    way: Callable[..., TensorDict], client: Any, num_bytes: int, batch: int, seconds: float
) -> Phases:
    """Put and get for a while, after a tenth of it to warm up. Raises `SystemExit` when something else comes back."""
    samples, number = make_samples(num_bytes, batch), 0
    for limit_s in (seconds / 10, seconds):
        phases: Phases = {}
        stop = time.perf_counter() + limit_s
        while time.perf_counter() < stop and len(phases.get("put", ())) < MAX_ROUNDS:
            got = way(client, samples, batch, number, phases)
            if number == 0 and not same(got, samples):
                raise SystemExit(f"{way.__name__}: other data came back than was put")
            number += 1
    return phases


def same(got: TensorDict, samples: TensorDict) -> bool:
    """True when both hold the same rows; what comes back may be nested tensors."""
    pairs = ((got[name].unbind(), samples[name].unbind()) for name in FIELDS)
    return all(len(ours) == len(theirs) and all(map(torch.equal, ours, theirs)) for ours, theirs in pairs)


def main() -> None:
    plan = json.loads(sys.argv[1])
    results = []
    with tempfile.TemporaryDirectory(prefix="tq-") as folder:
        # One for each of its three actors, more than a small machine has.
        ray.init(
            num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder
        )
        try:
            tq.init()
            client = tq.get_client()
            for name, way in (("native", native), ("kv", by_key)):
                for batch in plan["batches"]:
                    for size, num_bytes in plan["sizes"].items():
                        phases = measure(way, client, num_bytes, batch, plan["seconds"])
                        results.append(figures(f"TransferQueue, {name}", size, num_bytes, batch, phases))
        finally:
            tq.close()
            ray.shutdown()
    print(json.dumps(results))


def figures(system: str, size: str, num_bytes: int, batch: int, phases: Phases) -> dict[str, Any]:
    """Items per second from the mean, and from the median."""
    middle_s = sum(statistics.median(phases[phase]) for phase in ("put", "get")) / batch
    mean_s = {phase: sum(times) / len(times) / batch for phase, times in phases.items()}
    both_s = mean_s["put"] + mean_s["get"]
    return {
        "system": system,
        "size": size,
        "batch": batch,
        "calls": len(phases["put"]),
        "items_per_s": 1 / both_s,
        "median_items_per_s": 1 / middle_s,
        "mb_per_s": num_bytes / both_s / 1e6,
        "put_per_s": 1 / mean_s["put"],
        "get_per_s": 1 / mean_s["get"],
    }


if __name__ == "__main__":
    main()
