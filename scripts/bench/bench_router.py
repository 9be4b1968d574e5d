"""The benefit of routing by session and prefix: two engines, multi-turn episodes in groups of equal prompts.

    python scripts/bench/bench_router.py [--peer-venv DIR] [--repetitions 3] [--json OUT]

Every policy plays the same episodes on the same two engines, from empty prefix caches: `asyncrl` (our router),
`round_robin` (requests in turn), and with `--peer-venv`, a virtual environment that has PyPI's `vllm-router`, its
`consistent_hash` and `cache_aware` policies. The hit rate is the share of context tokens that the engines found
cached, over what one cache that never forgets would have held: whole blocks of every context sent before, by the
time it was sent, and of every answer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import numpy as np
from report import write_report

from asyncrl.config import parse_config
from asyncrl.credentials import authorization, bearer, share_one_token
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.router import EngineRouter

BLOCK = 32
"""Tokens of a cache block."""
PROMPT, OBSERVATION, ANSWER, TURNS = 512, 224, 8, 6
MAX_MODEL_LEN = 2048
VOCABULARY = 2000


class Generates(Protocol):
    async def generate(self, request: GenerateRequest) -> Generated: ...
    async def close(self) -> None: ...


class RoundRobin:
    """Requests in turn."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.clients = [EngineClient(url) for url in urls]
        self.turn = itertools.cycle(self.clients)

    async def generate(self, request: GenerateRequest) -> Generated:
        return await next(self.turn).generate(request)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))


class Peer:
    """Requests through `vllm-router` to vLLM's own completion route, with token ids and the session's header."""

    def __init__(self, url: str) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        headers, timeout = authorization(bearer(None, "engine")), aiohttp.ClientTimeout(total=600)
        self.http = aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=timeout)

    async def generate(self, request: GenerateRequest) -> Generated:
        body = {
            "model": "policy", "prompt": request.token_ids.tolist(), "max_tokens": request.max_tokens,
            "temperature": 1.0, "logprobs": 0, "return_token_ids": True, "user": request.session,
        }  # fmt: skip
        headers = {"x-session-id": request.session}
        async with self.http.post("/v1/completions", json=body, headers=headers) as reply:
            reply.raise_for_status()
            answer = await reply.json()
        ids = np.asarray(answer["choices"][0]["token_ids"], np.int32)
        details = answer["usage"].get("prompt_tokens_details") or {}
        zeros = np.zeros(len(ids), np.float32)
        cached = details.get("cached_tokens") or 0
        return Generated(ids, zeros, zeros.astype(np.int32), answer["choices"][0]["finish_reason"], cached)

    async def close(self) -> None:
        await self.http.close()


class Ideal:
    """What a single cache that never forgets would hold."""

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()

    def cached(self, ids: np.ndarray) -> int:
        """Tokens of a context found, in whole blocks; the last token is always computed."""
        count = 0
        while (count + 1) * BLOCK < len(ids) and ids[: (count + 1) * BLOCK].tobytes() in self.blocks:
            count += 1
        return count * BLOCK

    def add(self, ids: np.ndarray) -> None:
        self.blocks.update(ids[:end].tobytes() for end in range(BLOCK, len(ids) + 1, BLOCK))


async def play(policy: Generates, args: Any, seed: int, groups: int) -> dict[str, float]:
    """Play all groups at once, the turns of an episode in order, tools of uneven length between them."""
    ideal, found = Ideal(), {"context": 0, "cached": 0, "ideal": 0, "sampled": 0}

    async def episode(group: int, index: int) -> None:
        ids = np.random.default_rng([seed, group]).integers(5, VOCABULARY, PROMPT).astype(np.int32)
        rng = np.random.default_rng([seed, group, index])
        # Siblings start a little later, so that the first has left its prompt in the cache of its engine.
        await asyncio.sleep(float(rng.uniform(0, args.spread_s)))
        for turn in range(TURNS):
            name = f"{seed}-{group}-{index}"
            found["context"] += len(ids)
            found["ideal"] += ideal.cached(ids)
            ideal.add(ids)
            request = GenerateRequest(f"{name}-{turn}", ids, ANSWER, session=name)
            generated = await policy.generate(request)
            found["cached"] += generated.cached_tokens
            found["sampled"] += len(generated.token_ids)
            seen = rng.integers(5, VOCABULARY, OBSERVATION).astype(np.int32)
            # The last token sampled was never read by the engine.
            ideal.add(np.concatenate([ids, generated.token_ids[:-1]]))
            ids = np.concatenate([ids, generated.token_ids, seen])
            await asyncio.sleep(float(rng.lognormal(-2.5, 1.0)))

    start = time.perf_counter()
    await asyncio.gather(*(episode(g, i) for g in range(groups) for i in range(args.samples)))
    wall_s = time.perf_counter() - start
    await policy.close()
    return {
        "wall_s": wall_s,
        "hit_rate": found["cached"] / found["context"],
        "ideal_hit_rate": found["ideal"] / found["context"],
        "hits_over_ideal": found["cached"] / max(1, found["ideal"]),
        "sampled_per_s": found["sampled"] / wall_s,
    }


def start_peer(
    venv: Path, policy: str, urls: Sequence[str], log: Path
) -> tuple[subprocess.Popen[bytes], str]:
    """Start `vllm-router`; return it and its address once it answers."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(venv / "bin" / "vllm-router"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--policy",
        policy,
    ]
    with open(log, "wb") as sink:
        process = subprocess.Popen([*command, "--worker-urls", *urls], stdout=sink, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return process, f"http://127.0.0.1:{port}"
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    process.kill()
    raise SystemExit(f"vllm-router did not start:\n{log.read_text(errors='replace')[-2000:]}")


async def with_router(kind: str, urls: Sequence[str], args: Any, seed: int, groups: int) -> dict[str, float]:
    policy = EngineRouter([EngineClient(url) for url in urls]) if kind == "asyncrl" else RoundRobin(urls)
    return await play(policy, args, seed, groups)


async def with_peer(url: str, args: Any, seed: int, groups: int) -> dict[str, float]:
    return await play(Peer(url), args, seed, groups)


def measure(urls: Sequence[str], args: Any, folder: Path) -> dict[str, Any]:
    kinds = ["asyncrl", "round_robin"]
    kinds += (
        [f"vllm-router {policy}" for policy in ("consistent_hash", "cache_aware")] if args.peer_venv else []
    )
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for repetition in range(-1, args.repetitions):
        # Every policy goes first once, since later ones find the machine as others left it.
        shift = (repetition + 1) % len(kinds)
        for kind in kinds[shift:] + kinds[:shift]:
            for url in urls:
                headers = authorization(bearer(None, "engine"))
                reset = urllib.request.Request(f"{url}/reset_prefix_cache", b"", headers, method="POST")
                urllib.request.urlopen(reset, timeout=60)
            seed, groups = repetition + 10, args.groups if repetition >= 0 else 1
            if kind.startswith("vllm-router"):
                peer, url = start_peer(args.peer_venv, kind.split()[1], urls, folder / "peer.log")
                try:
                    result = asyncio.run(with_peer(url, args, seed, groups))
                finally:
                    peer.kill()
                    peer.wait()
            else:
                result = asyncio.run(with_router(kind, urls, args, seed, groups))
            if repetition >= 0:
                rounds[kind].append(result)
                print(
                    f"{kind:28s} {result['wall_s']:6.1f} s  hits/ideal {result['hits_over_ideal']:.3f}",
                    flush=True,
                )
    ours = rounds["asyncrl"]
    summary: dict[str, Any] = {
        kind: {name: spread([r[name] for r in found]) for name in found[0]} for kind, found in rounds.items()
    }
    summary["time_over"] = {
        kind: spread([a["wall_s"] / b["wall_s"] for a, b in zip(ours, found, strict=True)])
        for kind, found in rounds.items()
        if kind != "asyncrl"
    }
    return summary


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def make_model(folder: Path) -> str:
    """A random model of 13 M parameters: large enough for prompts to cost more than requests."""
    from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save

    tokenizer = build_tokenizer(["a few words"] * 20, 2048, MAX_MODEL_LEN)
    save(folder, build_model(2048, 512, 4, 4, MAX_MODEL_LEN, tokenizer.eos_token_id, seed=0), tokenizer)
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--spread-s", type=float, default=4.0, help="over which the episodes start")
    parser.add_argument("--peer-venv", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    share_one_token()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        engine = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 64}
        # vLLM reports cached tokens over its own routes only when asked to.
        engine["extra_args"] = ["--block-size", str(BLOCK), "--enable-prompt-tokens-details"]
        data = {
            "model": {"path": model},
            "env": {"name": "gridworld"},
            "run": {"threads": 1},
            "engine": engine,
        }
        config = parse_config(data)
        (folder / "config.json").write_text(config.model_dump_json())
        process_group = ProcessGroup(folder)
        try:
            argv = ["serve", "engine", "--folder", name, "--model", model]
            children = [process_group.start(f"engine-{i}", argv) for i in range(2)]
            urls = [process_group.wait_ready(child, config.run.start_timeout_s) for child in children]
            result = {**measure(urls, args, folder), "cpus": os.cpu_count()}
        finally:
            process_group.stop()
    write_report(result, args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
