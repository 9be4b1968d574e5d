"""Rates of an engine, by what comes back to its clients."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

REGAINED = 0.9
"""The share of a rate at which it counts as regained."""
Prompts = Sequence[np.ndarray]
Event = tuple[float, int]
"""When an answer came, in seconds, and its tokens."""


def random_prompts(number: int, length: int, seed: int = 0) -> list[np.ndarray]:
    """Return prompts [length] of ids that any of the measured models has."""
    rng = np.random.default_rng([seed, length])
    return [rng.integers(5, 400, length).astype(np.int32) for _ in range(number)]


def vllm_rate(url: str, token: str, prompts: Prompts, tokens: int) -> float:
    """Return the tokens a second of requests for `tokens` each, all at once, by vLLM's own route."""
    from asyncrl.credentials import authorization

    headers = {"Content-Type": "application/json"} | authorization(token)
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=60
    ) as it:
        name = json.loads(it.read())["data"][0]["id"]

    def complete(prompt: np.ndarray) -> int:
        body = {
            "model": name, "prompt": prompt.tolist(), "max_tokens": tokens, "ignore_eos": True, "logprobs": 1,
        }  # fmt: skip
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.loads(reply.read())["usage"]["completion_tokens"]

    start = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        done = sum(pool.map(complete, prompts))
    return done / (time.perf_counter() - start)


def our_rate(url: str, token: str, prompts: Prompts, tokens: int, name: str = "r") -> float:
    """Return the tokens a second of the same requests by our route. name: begins their ids."""

    async def all_of_them() -> float:
        from asyncrl.generation import GenerateRequest
        from asyncrl.services.engine.client import EngineClient

        client = EngineClient(url, token)
        requests = [GenerateRequest(f"{name}-{n}", prompt, tokens) for n, prompt in enumerate(prompts)]
        try:
            start = time.perf_counter()
            answers = await asyncio.gather(*map(client.generate, requests))
            return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - start)
        finally:
            await client.close()

    return asyncio.run(all_of_them())


def kv_tokens(url: str, token: str) -> int:
    """Return how many tokens an engine's KV cache holds."""

    async def ask() -> int:
        from asyncrl.services.engine.control import EngineControl

        control = EngineControl(url, token)
        try:
            return int((await control.state())["kv_tokens"])
        finally:
            await control.close()

    return asyncio.run(ask())


def turn_rate(url: str, token: str, length: int, turns: int, conversations: int = 4) -> float:
    """Return the turns a second of conversations that begin with so many tokens and grow by 216 a turn."""

    async def all_of_them() -> float:
        from asyncrl.generation import GenerateRequest
        from asyncrl.services.engine.client import EngineClient

        client, rng = EngineClient(url, token), np.random.default_rng(0)

        async def one(number: int, context: np.ndarray) -> None:
            for turn in range(turns):
                request = GenerateRequest(f"{number}-{turn}", context, 16, session=str(number))
                answer = await client.generate(request)
                more = rng.integers(5, 400, 200).astype(np.int32)
                context = np.concatenate([context, answer.token_ids, more])

        try:
            # What the first turn would compute is in the cache then.
            prompts = random_prompts(conversations, length)
            first = [GenerateRequest(f"first-{n}", prompt, 1) for n, prompt in enumerate(prompts)]
            await asyncio.gather(*map(client.generate, first))
            start = time.perf_counter()
            await asyncio.gather(*itertools.starmap(one, enumerate(prompts)))
            return conversations * turns / (time.perf_counter() - start)
        finally:
            await client.close()

    return asyncio.run(all_of_them())


class Talk:
    """Conversations that go on until they are ended: each asks for `tokens` again and again, and begins anew where its
    context has `longest` tokens. Their first answers differ in length, so that later ones do not come all at once."""

    def __init__(self, client: Any, prompts: Prompts, tokens: int, longest: int) -> None:
        self.events: list[Event] = []
        self._client, self._tokens, self._longest = client, tokens, longest
        self._started = 0
        self._tasks = [
            asyncio.ensure_future(self._one(number, prompt, 1 + number * tokens // len(prompts)))
            for number, prompt in enumerate(prompts)
        ]

    async def _one(self, number: int, prompt: np.ndarray, first: int) -> None:
        from asyncrl.generation import GenerateRequest

        context = prompt
        for turn in itertools.count():
            tokens = first if turn == 0 else self._tokens
            answer = await self._client.generate(
                GenerateRequest(f"talk-{number}-{turn}", context, tokens, session=str(number))
            )
            self._started += turn == 0
            self.events.append((time.perf_counter(), len(answer.token_ids)))
            context = np.concatenate([context, answer.token_ids])
            if len(context) + self._tokens > self._longest:
                context = prompt

    async def for_s(self, seconds: float) -> None:
        """Go on for a while. Raises what a conversation raised."""
        done, _ = await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def started(self) -> None:
        """Return when each has had its first answer."""
        while self._started < len(self._tasks):
            await self.for_s(0.05)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def tokens_between(events: Sequence[Event], start: float, stop: float) -> int:
    """Return the tokens of answers that came after `start`, up to `stop`."""
    return sum(tokens for at, tokens in events if start < at <= stop)


def regained_s(
    events: Sequence[Event], since: float, until: float, rate: float, window_s: float
) -> float | None:
    """Return after how many seconds from `since` a window begins in which tokens come at `REGAINED` of a rate, None if
    there was none up to `until`. Windows begin at `since` and at answers."""
    for start in (since, *(at for at, _ in events if at > since)):
        if start + window_s > until:
            break
        if tokens_between(events, start, start + window_s) >= REGAINED * rate * window_s:
            return start - since
    return None
