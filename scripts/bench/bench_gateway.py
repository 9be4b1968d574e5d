"""The cost of the gateway: the latency it adds to a call, and tokens per second of whole agent episodes, in one run.

    python scripts/bench/bench_gateway.py [--model DIR] [--repetitions 3] [--json OUT]

`latency`: the same chat request for one token, sent in turn to vLLM's own `/v1/chat/completions` and to the gateway's,
one at a time; the difference of the medians is what the gateway adds.
`path`: an agent plays multi-turn episodes through rollout worker, router, gateway and environment; `straight`: such
episodes, turn after turn with the same observations, all at once, go to the engine's token route directly.
Both start from an empty prefix cache, and each goes first in turn. The ratio is of sampled tokens a second. `long`
turns have up to 64 tokens, `short` ones up to 4, where the request itself costs more than its tokens.
Without `--model` a random model of 3 M parameters is made.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from report import write_report

from asyncrl.config import Config, parse_config
from asyncrl.credentials import authorization, bearer, share_one_token
from asyncrl.data.codec import decode_group, pack, task_to_map, unpack
from asyncrl.extensions.agents.gateway.recorded_episode import EpisodeSpec
from asyncrl.extensions.agents.serving.client import GatewayClient
from asyncrl.generation import GenerateRequest
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.services.engine.client import EngineClient
from asyncrl.types import Task, Trajectory

TURNS = 4
OBSERVATION = "the tool returned 4 8 15 16 23 42 and then some more words to read " * 2
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
]
PATHS = {"long": 64, "short": 4}
MAX_MODEL_LEN = 1024


async def play(task: dict[str, Any], episode: Any) -> float:
    """The agent: `TURNS` calls, a made-up observation after each. Runs inside the rollout worker."""
    http = _session()
    messages = [{"role": "user", "content": question(task["seed"])}]
    headers = {"Authorization": f"Bearer {episode.key}"}
    for _ in range(TURNS):
        body = {"model": "policy", "messages": messages}
        async with http.post(f"{episode.url}/v1/chat/completions", json=body, headers=headers) as reply:
            reply.raise_for_status()
            message = (await reply.json())["choices"][0]["message"]
        messages += [message, {"role": "user", "content": OBSERVATION}]
    return 1.0


_SESSIONS: list[aiohttp.ClientSession] = []


def _session() -> aiohttp.ClientSession:
    if not _SESSIONS:
        _SESSIONS.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    return _SESSIONS[0]


def question(seed: int) -> str:
    return " ".join(WORDS[(seed * 7 + k * (seed % 5 + 1)) % len(WORDS)] for k in range(40)) + f" {seed}"


async def latencies_ms(
    ask: Sequence[Callable[[int], Awaitable[None]]], count: int, first: int
) -> list[float]:
    """Median latency of each of `ask`, taken in turn, one request at a time."""
    found: list[list[float]] = [[] for _ in ask]
    for number in range(first, first + count):
        for kind, call in enumerate(ask):
            start = time.perf_counter()
            await call(number * len(ask) + kind)
            found[kind].append(1000 * (time.perf_counter() - start))
    return [statistics.median(times) for times in found]


async def measure_latency(engine: str, gateway: str, count: int, repetitions: int) -> dict[str, Any]:
    client = GatewayClient(gateway)
    episode = await client.open(EpisodeSpec(task_id="latency"))
    async with aiohttp.ClientSession() as http:

        async def ask(url: str, headers: dict[str, str], number: int) -> None:
            messages = [{"role": "user", "content": question(number)}]
            body = {"model": "policy", "messages": messages, "max_tokens": 1, "temperature": 1.0}
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
                reply.raise_for_status()
                await reply.json()

        key = {"Authorization": f"Bearer {episode.key}"}
        own = authorization(bearer(None, "engine"))
        both = [lambda n: ask(engine, own, n), lambda n: ask(gateway, key, n)]
        await latencies_ms(both, 50, 0)
        rounds = [await latencies_ms(both, count, 1000 * (r + 1)) for r in range(repetitions)]
    await client.finish(episode.id)
    await client.close()
    return {
        "engine_p50_ms": spread([direct for direct, _ in rounds]),
        "gateway_p50_ms": spread([through for _, through in rounds]),
        "added_p50_ms": spread([through - direct for direct, through in rounds]),
    }


def through_everything(worker: str, tasks: int, samples: int, first: int) -> tuple[float, list[Trajectory]]:
    """Tokens a second of whole episodes, and their trajectories."""
    body = [task_to_map(Task(f"t{first + n}", "agent", first + n)) for n in range(tasks)]
    data = pack({"tasks": body, "samples": samples})
    start = time.perf_counter()
    headers = {"Content-Type": "application/msgpack"} | authorization(bearer(None, "rollout"))
    with urllib.request.urlopen(
        urllib.request.Request(f"{worker}/v1/rollouts", data, headers), timeout=600
    ) as reply:
        groups = [decode_group(raw) for raw in unpack(reply.read())["groups"]]
    wall_s = time.perf_counter() - start
    trajectories = [t for group in groups for t in group.trajectories]
    failed = [t.error for t in trajectories if t.failure is not None]
    if failed:
        raise SystemExit(f"{len(failed)} episodes failed: {failed[0]}")
    return sum(t.num_sampled for t in trajectories) / wall_s, trajectories


async def straight(
    engine: str, trajectories: Sequence[Trajectory], max_tokens: int, stop: tuple[int, ...]
) -> float:
    """Tokens a second of the same requests without anything between."""
    client = EngineClient(engine)

    async def episode(number: int, trajectory: Trajectory) -> int:
        count, ids, seen = 0, np.empty(0, np.int32), 0
        for turn in trajectory.turns:
            ids = np.concatenate([ids, trajectory.token_ids[seen : turn.start]])
            request = GenerateRequest(f"s{number}-{turn.start}", ids, max_tokens, stop_token_ids=stop)
            generated = (await client.generate(request)).token_ids
            count += len(generated)
            ids, seen = np.concatenate([ids, generated]), turn.end
        return count

    start = time.perf_counter()
    counts = await asyncio.gather(*(episode(n, t) for n, t in enumerate(trajectories)))
    wall_s = time.perf_counter() - start
    await client.close()
    return sum(counts) / wall_s


def measure_path(
    engine: str, worker: str, max_tokens: int, stop: tuple[int, ...], args: Any
) -> dict[str, Any]:
    rates: list[tuple[float, float]] = []
    # Short turns need more of them for a time that can be measured.
    tasks = args.tasks * (4 if max_tokens < max(PATHS.values()) else 1)
    clear_cache(engine)
    _, trajectories = through_everything(worker, tasks, args.samples, 1000)
    for repetition in range(args.repetitions):
        found: dict[str, float] = {}
        for kind in ("path", "straight") if repetition % 2 else ("straight", "path"):
            clear_cache(engine)
            if kind == "path":
                first = 1000 * (repetition + 2)
                found[kind], _ = through_everything(worker, tasks, args.samples, first)
            else:
                found[kind] = asyncio.run(straight(engine, trajectories, max_tokens, stop))
        rates.append((found["path"], found["straight"]))
        shown = f"path {found['path']:6.0f}, straight {found['straight']:6.0f} tokens/s"
        print(f"{max_tokens:3d} tokens a turn: {shown}", flush=True)
    return {
        "path_tokens_per_s": spread([path for path, _ in rates]),
        "straight_tokens_per_s": spread([direct for _, direct in rates]),
        "ratio": spread([path / direct for path, direct in rates]),
    }


def clear_cache(engine: str) -> None:
    urllib.request.urlopen(
        urllib.request.Request(
            f"{engine}/reset_prefix_cache", b"", authorization(bearer(None, "engine")), method="POST"
        ),
        timeout=60,
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def make_model(folder: Path) -> str:
    """A random model of 3 M parameters with a tokenizer for the workload's words."""
    from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save

    tokenizer = build_tokenizer([*WORDS, OBSERVATION] * 20, 2048, MAX_MODEL_LEN)
    save(
        folder,
        build_model(len(tokenizer), 256, 4, 4, MAX_MODEL_LEN, tokenizer.eos_token_id, seed=0),
        tokenizer,
    )
    return str(folder)


def recipe(model: str, max_tokens: int) -> Config:
    return parse_config(
        {
            "model": {"path": model},
            "env": {
                "name": "agent",
                "config": {"callable": f"{Path(__file__).resolve()}:play", "max_running": 512},
            },
            "engine": {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 256},
            "run": {"threads": 1},
            "rollout": {"max_tokens_per_turn": max_tokens},
        }
    )


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model = args.model or make_model(folder / "model")
    from asyncrl.chat.renderer import load_renderer

    stop = load_renderer(model).stop_token_ids
    # Long contexts: more than an engine's own choice on a CPU.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    process_group = ProcessGroup(folder)
    try:
        (folder / "config.json").write_text(recipe(model, PATHS["long"]).model_dump_json())
        given = ["--folder", str(folder), "--model", model]
        engine = process_group.wait_ready(process_group.start("engine", ["serve", "engine", *given]), 300)
        gateway_argv = ["serve", "gateway", *given, "--engines", engine]
        gateway = process_group.wait_ready(process_group.start("gateway", gateway_argv), 60)
        latency = asyncio.run(measure_latency(engine, gateway, args.requests, args.repetitions))
        print(f"added latency p50: {latency['added_p50_ms']['median']:.2f} ms", flush=True)
        paths = {}
        for name, max_tokens in PATHS.items():
            (folder / "config.json").write_text(recipe(model, max_tokens).model_dump_json())
            worker_argv = ["serve", "rollout", *given, "--engines", engine, "--env", "http://127.0.0.1:9"]
            worker = process_group.start(f"rollout-{name}", worker_argv)
            paths[name] = measure_path(engine, process_group.wait_ready(worker, 60), max_tokens, stop, args)
            process_group.stop([worker])
    finally:
        process_group.stop()
    return {"latency": latency, "path": paths, "cpus": os.cpu_count()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="")
    parser.add_argument("--requests", type=int, default=300, help="of each kind, for latency")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    share_one_token()
    with tempfile.TemporaryDirectory() as folder:
        result = run(args, Path(folder))
    write_report(result, args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
