"""A judge or reward model behind an endpoint: requests in flight are bounded, batched, repeated and remembered.

| kind | request | answer |
|---|---|---|
| `chat` | OpenAI `/v1/chat/completions` with the filled prompt | a number from 0 to 10 on the last line |
| `score` | `{"items": [{"task", "messages", "reward"}, ...]}` to the URL itself | `{"scores": [number or null, ...]}` |

Equal conversations of one task are judged once: while a request is in flight others wait for it, afterwards the answer
is remembered. A reply in any other form is the judge's failure: a policy may have put numbers into it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import aiohttp

from asyncrl.data.transcript import content_text
from asyncrl.env.protocol import MAX_REWARD
from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.judging import JudgeRequest
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.services.http.batching import RequestBatcher

ATTEMPTS = 3
TIMEOUT_S = 60.0
MAX_IN_FLIGHT = 32
MAX_TOKENS = 512
"""Tokens of a chat judge's reply at most."""
SCALE = 10.0
"""The highest number of a chat judge, by which it is divided; the lowest is 0."""
FIRST_PAUSE_S = 0.5
BATCH_SIZE = 32
REMEMBERED = 65536
PLACES = re.compile(r"\{conversation\}|\{task\}")
NUMBER = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,6})?")
"""All that a chat judge's last line may be."""


class JudgeClient:
    """Implements `judging.Judge` over HTTP."""

    def __init__(self, config: JudgeConfig, key: str = "") -> None:
        self.config = config
        self.judged = 0
        """Answers the endpoint gave; the rest came from memory."""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._known: OrderedDict[str, float] = OrderedDict()
        self._asked: dict[str, asyncio.Future[float]] = {}
        size = BATCH_SIZE if config.kind == "score" else 1
        self._requests = RequestBatcher[tuple[str, JudgeRequest]](self._send, size)
        self._limit = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        for key, _ in await self._requests.close():
            self._asked.pop(key).cancel()
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def score(self, request: JudgeRequest) -> float:
        """Return the judge's score. Raises `JudgeError` saying what the endpoint said."""
        key = _digest(request, self.config.kind)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        answer = self._asked.get(key)
        if answer is None:
            answer = self._asked[key] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_retrieve)
            self._requests.add((key, request))
        return await asyncio.shield(answer)

    async def _send(self, batch: list[tuple[str, JudgeRequest]]) -> None:
        scores: Sequence[float | Exception]
        try:
            async with self._limit:
                scores = await self._ask([request for _, request in batch])
        except JudgeError as error:
            scores = [error] * len(batch)
        except asyncio.CancelledError:
            for key, _ in batch:
                self._asked.pop(key).cancel()
            raise
        except Exception as error:
            # A bug must crash the callers instead of letting them wait for their timeouts.
            scores = [error] * len(batch)
        for (key, _), score in zip(batch, scores, strict=True):
            answer = self._asked.pop(key)
            if isinstance(score, Exception):
                answer.set_exception(score)
                continue
            self.judged += 1
            self._known[key] = score
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            answer.set_result(score)

    async def _ask(self, requests: list[JudgeRequest]) -> list[float | JudgeError]:
        chat = self.config.kind == "chat"
        url = self.config.url.rstrip("/") + ("/v1/chat/completions" if chat else "")
        body = self._prompt(requests[0]) if chat else {"items": [_item(request) for request in requests]}
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                reply = await self._post(url, body)
                return [self._read_chat(reply)] if chat else _read_scores(reply, len(requests))
            except JudgeError as error:
                problem = str(error)
        raise JudgeError(f"judge {url}: {problem} ({ATTEMPTS} attempts)")

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers=self._headers, connector=aiohttp.TCPConnector(limit=MAX_IN_FLIGHT)
            )
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._http.post(url, json=body, timeout=timeout) as response:
                text = await response.text()
                if response.status != 200:
                    raise JudgeError(f"HTTP {response.status}: {text[:300]}")
                return json.loads(text)
        except TimeoutError:
            raise JudgeError(f"no answer within {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise JudgeError(f"{type(error).__name__}: {error}") from error

    def _prompt(self, request: JudgeRequest) -> dict[str, Any]:
        # In one pass, so that placeholders in the policy's text are not filled in.
        filled = {
            "{conversation}": _transcript(request),
            "{task}": json.dumps(request.task.data, default=str),
        }
        text = PLACES.sub(lambda place: filled[place.group()], self.config.prompt)
        return {
            "model": self.config.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0.0,
            "max_tokens": MAX_TOKENS,
        }

    def _read_chat(self, reply: Any) -> float:
        try:
            choice = reply["choices"][0]
            text, finished = choice["message"]["content"] or "", choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            text, finished = None, None
        if not isinstance(text, str):
            raise JudgeError(f"not a chat completion: {_shown(reply)}")
        if finished == "length":
            # Its last line may be the beginning of another number.
            raise JudgeError(f"the reply was cut off after {MAX_TOKENS} tokens: ...{text[-200:]!r}")
        last = text.rstrip().rpartition("\n")[2].strip()
        if NUMBER.fullmatch(last) is None or float(last) > SCALE:
            raise JudgeError(
                f"the reply's last line must be a number from 0 to {SCALE:g} and nothing else, got {last[-200:]!r}"
            )
        return float(last) / SCALE


def _read_scores(reply: Any, count: int) -> list[float | JudgeError]:
    scores = reply.get("scores") if isinstance(reply, dict) else None
    if not isinstance(scores, list) or len(scores) != count:
        raise JudgeError(f'expected {{"scores": [{count} numbers]}}, got {_shown(reply)}')
    return [_read_score(score) for score in scores]


def _read_score(score: Any) -> float | JudgeError:
    """Return the score of one conversation of a batch; an invalid one fails that conversation alone."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return JudgeError(f"the judge gave {score!r:.100} for this conversation")
    try:
        return _in_range(score)
    except JudgeError as error:
        return error


def _in_range(score: float) -> float:
    # Compared as it is: an integer may be beyond every float.
    if not -MAX_REWARD <= score <= MAX_REWARD:
        raise JudgeError(f"a score must be a number up to ±{MAX_REWARD:g}, got {_shown(score)}")
    return float(score)


def _shown(value: Any) -> str:
    """Return the beginning of what the judge said. Python does not print integers of thousands of digits."""
    try:
        return str(value)[:300]
    except ValueError:
        return "a huge integer"


def _item(request: JudgeRequest) -> dict[str, Any]:
    task = request.task
    return {
        "task": {"id": task.id, "env": task.env, "seed": task.seed, "data": task.data},
        "messages": list(request.messages),
        "reward": request.reward,
    }


def _transcript(request: JudgeRequest) -> str:
    lines = []
    for message in request.messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        text = content_text(message.get("content"))
        lines.append(f"[{message['role']}] {text}" + (f" {json.dumps(calls)}" if calls else ""))
    return "\n".join(lines)


def _digest(request: JudgeRequest, kind: str) -> str:
    """Return a key that is equal for equal questions. The environment's reward is part of a score judge's question."""
    task, reward = request.task, request.reward if kind == "score" else None
    content = json.dumps([task.env, task.data, task.seed, request.messages, reward], default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _retrieve(answer: asyncio.Future[float]) -> None:
    """Mark a failure as retrieved, even if every episode that asked was cancelled meanwhile."""
    if not answer.cancelled():
        answer.exception()
