"""Short engine requests per second of one rollout worker, compared with the raw engine, in one run.

    python scripts/bench/bench_rollout.py --model DIR [--requests 2000] [--json OUT]

`raw` sends single requests to vLLM's own token route with aiohttp; `worker` sends the same requests through the
worker's client, which batches them. Both are warmed up, then measured in turn, three times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np
from report import write_report

from asyncrl.config import parse_config
from asyncrl.credentials import authorization, bearer, share_one_token
from asyncrl.generation import GenerateRequest
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.services.engine.client import EngineClient

PROMPT_TOKENS = 40
NEW_TOKENS = 4


def prompts(count: int, vocab_size: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocab_size, PROMPT_TOKENS).astype(np.int32) for _ in range(count)]


async def bounded(concurrency: int, calls) -> float:
    """Run the calls, at most `concurrency` at once; return calls a second."""
    limit = asyncio.Semaphore(concurrency)

    async def one(call):
        async with limit:
            await call()

    start = time.perf_counter()
    await asyncio.gather(*(one(call) for call in calls))
    return len(calls) / (time.perf_counter() - start)


async def raw(url: str, batch: list[np.ndarray], concurrency: int, name: str) -> float:
    headers, connector = authorization(bearer(None, "engine")), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, headers=headers, connector=connector) as http:

        async def call(i: int, ids: np.ndarray) -> None:
            body = {
                "token_ids": ids.tolist(),
                "request_id": f"{name}-{i}",
                "sampling_params": {"max_tokens": NEW_TOKENS, "temperature": 1.0, "logprobs": 0},
            }
            async with http.post("/inference/v1/generate", json=body) as response:
                response.raise_for_status()
                await response.json()

        return await bounded(concurrency, [lambda i=i, p=p: call(i, p) for i, p in enumerate(batch)])


async def worker(url: str, batch: list[np.ndarray], concurrency: int, name: str) -> float:
    client = EngineClient(url)
    try:
        return await bounded(
            concurrency,
            [
                lambda i=i, p=p: client.generate(GenerateRequest(f"{name}-{i}", p, NEW_TOKENS))
                for i, p in enumerate(batch)
            ],
        )
    finally:
        await client.close()


async def measure(
    url: str, vocab_size: int, requests: int, concurrency: int, repetitions: int
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"raw": [], "worker": []}
    for repetition in range(-1, repetitions):
        count = requests if repetition >= 0 else 256
        for name, send in (("raw", raw), ("worker", worker)):
            batch = prompts(count, vocab_size, seed=1000 + repetition)
            rate = await send(url, batch, concurrency, f"{name}-{repetition}")
            if repetition >= 0:
                found[name].append(rate)
                print(f"{name:7s} {rate:6.0f} requests/s", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    share_one_token()
    vocab_size = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    engine = {"max_model_len": 256, "max_num_seqs": 256}
    data = {
        "model": {"path": args.model},
        "env": {"name": "gridworld"},
        "run": {"threads": 1},
        "engine": engine,
    }
    config = parse_config(data)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(config.model_dump_json())
        process_group = ProcessGroup(Path(folder))
        try:
            child = process_group.start(
                "engine", ["serve", "engine", "--folder", folder, "--model", args.model]
            )
            url = process_group.wait_ready(child, config.run.start_timeout_s)
            found = asyncio.run(measure(url, vocab_size, args.requests, args.concurrency, args.repetitions))
        finally:
            process_group.stop()
    ratios = [w / r for w, r in zip(found["worker"], found["raw"], strict=True)]
    result = {
        "requests_per_s": {
            k: {"median": statistics.median(v), "min": min(v), "max": max(v)} for k, v in found.items()
        },
        "worker_over_raw": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }
    write_report(result, args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
