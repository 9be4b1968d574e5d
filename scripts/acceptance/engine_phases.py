"""Phases that ask engines: how fast they decode, what long contexts cost each turn, and what a new version costs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from acceptance.context import Context
from acceptance.measure import EAGER, Found, dtype, model, tried
from acceptance.rates import (
    Talk,
    kv_tokens,
    our_rate,
    random_prompts,
    regained_s,
    tokens_between,
    turn_rate,
    vllm_rate,
)
from acceptance.weight_phases import publish
from bench.report import Figure, Omitted

BLOCKS = (16, 64)
HASHES = ("sha256", "xxhash")
KV_BYTES = 20 * 2**30
"""Of each of the engines that differ in them: 180,000 tokens of Qwen3-0.6B."""


def decode_calibration(context: Context) -> Iterator[Found]:
    """Sampled tokens a second by the number of sequences and the length of their prompts, by our route and by vLLM's
    own: the simulator's constants."""
    numbers, prompts, tokens = ((64, 128, 256), (512, 2048, 8192), 64) if context.gpus else ((4,), (64,), 16)
    engine: dict[str, Any] = {"max_num_seqs": max(numbers), "max_model_len": max(prompts) + tokens}
    if context.gpus:
        engine["gpu_memory_utilization"] = 0.85
    with context.engine(model(context, "0.6B"), dtype(context), **engine) as served:
        for length in prompts:
            for number in numbers:
                label = f"{number} sequences after {length}"
                yield from tried(label, partial(_decoded, *served, number, length, tokens, label))


def _decoded(url: str, token: str, number: int, length: int, tokens: int, label: str) -> Iterator[Found]:
    if (held := kv_tokens(url, token)) < number * (length + tokens):
        yield Omitted(label, f"the KV cache holds {held:,} tokens")
        return
    prompts = random_prompts(number, length)
    # Both find the prompts computed.
    our_rate(url, token, prompts, 1, "first")
    yield Figure(f"{label}, our route", our_rate(url, token, prompts, tokens, "then"), "tokens/s")
    yield Figure(f"{label}, vLLM's route", vllm_rate(url, token, prompts, tokens), "tokens/s")


def cached_turns(context: Context) -> Iterator[Found]:
    """Turns a second of conversations whose context is in the prefix cache, by block size and hash, one changed at a
    time. The engines start at once and are asked one after the other; they compute without graphs, to start sooner."""
    length, turns = (32768, 12) if context.gpus else (256, 2)
    # Engines that start at once must not derive their caches from what is free meanwhile.
    share: dict[str, Any] = {"gpu_memory_utilization": 0.2} if context.gpus else {}
    cache = ["--kv-cache-memory-bytes", str(KV_BYTES)] if context.gpus else []
    settings = {
        f"blocks of {size}, {hash_name}": {
            "max_model_len": length + 216 * turns + 32,
            "max_num_seqs": 8,
            "extra_args": [
                "--block-size", str(size), "--prefix-caching-hash-algo", hash_name, *EAGER, *cache,
            ],
            **share,
        }
        for size in BLOCKS
        for hash_name in HASHES
    }  # fmt: skip
    named = {f"engine-{number}": one for number, one in enumerate(settings.values())}
    with context.engines(model(context, "0.6B"), dtype(context), named) as served:
        for name, (url, token) in zip(settings, served, strict=True):
            label = f"turns after {length} tokens, {name}"
            yield from tried(
                label, lambda url=url, token=token, label=label: [  # type: ignore[misc]
                    Figure(label, turn_rate(url, token, length, turns), "1/s")
                ],
            )  # fmt: skip


def kept_cache(context: Context) -> Iterator[Found]:
    """Conversations of long contexts across a new version, with what the version before computed kept and cleared: the
    pause, and the seconds until the rate from before is regained."""
    from asyncrl.weights.files import read_weights, write_weights

    number, length, tokens = (16, 16384, 32) if context.gpus else (2, 256, 16)
    before_s, after_s, window_s = (3.0, 5.0, 1.0) if context.gpus else (4.0, 12.0, 3.0)
    path, longest = model(context, "0.6B"), length + 64 * tokens
    with tempfile.TemporaryDirectory(prefix="asyncrl-acceptance-") as folder:
        engine: dict[str, Any] = {"max_num_seqs": number, "max_model_len": longest}
        with context.engine(path, dtype(context), weights=Path(folder), **engine) as (url, token):
            for version, kept in enumerate((True, False), start=1):
                file = write_weights(folder, version, read_weights(path / "model.safetensors"), epoch=1)

                async def across(kept: bool = kept, file: Any = file) -> list[Found]:
                    from asyncrl.services.engine.client import EngineClient

                    client = EngineClient(url, token)
                    talk = Talk(client, random_prompts(number, length, int(kept)), tokens, longest)
                    try:
                        return await _across(talk, url, token, file, kept, before_s, after_s, window_s)
                    finally:
                        await talk.end()
                        await client.close()

                yield from tried(f"keep_kv={str(kept).lower()}", lambda across=across: asyncio.run(across()))  # type: ignore[misc]


async def _across(
    talk: Talk, url: str, token: str, file: Any, kept: bool, before_s: float, after_s: float, window_s: float
) -> list[Found]:
    label = f"keep_kv={str(kept).lower()}"
    await talk.started()
    start = time.perf_counter()
    await talk.for_s(before_s)
    since = time.perf_counter()
    rate = tokens_between(talk.events, start, since) / (since - start)
    parts = await publish(url, token, file, keep_kv=kept)
    begun = time.perf_counter() - parts["commit"]
    await talk.for_s(after_s)
    until = time.perf_counter()
    lost_s = until - begun - tokens_between(talk.events, begun, until) / rate
    found: list[Found] = [
        Figure(f"{label}: rate before", rate, "tokens/s"),
        Figure(f"{label}: pause", parts["pause"], "s"),
        Figure(f"{label}: sampling lost", lost_s, "s at the rate before"),
    ]
    regained = regained_s(talk.events, begun, until, rate, window_s)
    if regained is None:
        return [*found, Omitted(f"{label}: rate regained", f"not within {until - begun:.0f} s")]
    return [*found, Figure(f"{label}: rate regained", regained, "s")]
