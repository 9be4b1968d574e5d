"""A judge or reward model behind an endpoint: requests are batched, sampled several times, and remembered.

| kind | request | answer |
|---|---|---|
| `chat` | OpenAI `/v1/chat/completions` with the filled prompt | numbers at the end of the text (`questions`) |
| `score` | `{"items": [{"task", "messages", "reward"}, ...]}` to the URL itself | `{"scores": [number or null, ...]}` |

Equal questions are asked once: while a request is in flight others wait for it, afterwards the answer is remembered.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from asyncrl.clock import now_s
from asyncrl.env.protocol import MAX_REWARD
from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.endpoint import Endpoint, chat_url, judge_errors, log
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest, Scores, chat_body, read_reply, shown
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.extensions.judge.votes import voted
from asyncrl.services.http.batching import RequestBatcher

BATCH_SIZE = 32
REMEMBERED = 65536
TELL_EVERY_S = 60.0
"""Seconds between two lines on replies that did not count, beside others that did."""


class JudgeClient:
    """Implements `judging.Judge` over HTTP. outage_s: how long a server that is away is waited for."""

    def __init__(self, config: JudgeConfig, key: str = "", outage_s: float = 0.0) -> None:
        self.config = config
        self.judged = 0
        """Answers the endpoint gave; the rest came from memory."""
        self.samples_failed = 0
        """Replies that did not count, of questions to which others did."""
        self._told_s, self._told = float("-inf"), 0
        self._known: OrderedDict[str, Scores] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Scores]] = {}
        size = BATCH_SIZE if config.kind == "score" else 1
        self._requests = RequestBatcher[tuple[str, JudgeRequest]](self._send, size)
        url = chat_url(config.url) if config.kind == "chat" else config.url.rstrip("/")
        self.endpoint = Endpoint(url, key, config.max_requests, outage_s)

    async def close(self) -> None:
        for key, _ in await self._requests.close():
            self._asked.pop(key).cancel()
        await self.endpoint.close()

    async def score(self, request: JudgeRequest) -> Scores:
        """Return the judge's scores. Raises `JudgeError` saying what the endpoint said."""
        key = _digest(request, self.config)
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
        scores: Sequence[Scores | Exception]
        requests = [request for _, request in batch]
        try:
            if self.config.kind == "score":
                scores = await self._scored(requests)
            else:
                scores = [await self._sampled(requests[0])]
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

    async def _scored(self, requests: Sequence[JudgeRequest]) -> list[Scores | JudgeError]:
        body = {"items": [_item(request) for request in requests]}
        return await self.endpoint.ask(body, lambda reply: _read_scores(reply, len(requests)))

    async def _sampled(self, request: JudgeRequest) -> Scores:
        """Return the vote of as many replies as are asked for, over those that count.

        Raises `JudgeError` where none does.
        """
        body, count = chat_body(self.config, request), self.config.samples

        async def one() -> Scores:
            return await self.endpoint.ask(body, lambda reply: read_reply(self.config, request, reply))

        replies = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
        failed = judge_errors(replies)
        if len(failed) == count:
            several = f"none of {count} replies counts; the first: " if count > 1 else ""
            raise JudgeError(f"{several}{failed[0]}")
        if failed:
            self._tell(len(failed), failed[0])
        return voted(self.config.vote, [reply for reply in replies if isinstance(reply, Scores)])

    def _tell(self, failed: int, error: BaseException) -> None:
        """Count replies that did not count, and say so now and then."""
        self.samples_failed += failed
        if now_s() - self._told_s < TELL_EVERY_S:
            return
        log.warning(
            "judge: %d replies did not count since this was last said; their episodes have the vote of the others "
            "(judge.samples=%d); the last: %s",
            self.samples_failed - self._told,
            self.config.samples,
            error,
        )
        self._told_s, self._told = now_s(), self.samples_failed


def _read_scores(reply: Any, count: int) -> list[Scores | JudgeError]:
    scores = reply.get("scores") if isinstance(reply, dict) else None
    if not isinstance(scores, list) or len(scores) != count:
        raise JudgeError(f'expected {{"scores": [{count} numbers]}}, got {shown(reply)}')
    return [_read_score(score) for score in scores]


def _read_score(score: Any) -> Scores | JudgeError:
    """Return the score of one conversation of a batch; an invalid one fails that conversation alone."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return JudgeError(f"the judge gave {score!r:.100} for this conversation")
    # Compared as it is: an integer may be beyond every float.
    if not -MAX_REWARD <= score <= MAX_REWARD:
        return JudgeError(f"a score must be a number up to ±{MAX_REWARD:g}, got {shown(score)}")
    return Scores({OVERALL: float(score)})


def _item(request: JudgeRequest) -> dict[str, Any]:
    task = request.task
    return {
        "task": {"id": task.id, "env": task.env, "seed": task.seed, "data": task.data},
        "messages": list(request.messages),
        "reward": request.reward,
    }


def _digest(request: JudgeRequest, config: JudgeConfig) -> str:
    """Return a key that is equal for equal questions: what a chat judge reads, what a reward model is sent."""
    asked: Any
    if config.kind == "chat":
        asked = chat_body(config, request)
    else:
        task = request.task
        asked = [task.env, task.data, task.seed, request.messages, request.reward]
    content = json.dumps(asked, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _retrieve(answer: asyncio.Future[Scores]) -> None:
    """Mark a failure as retrieved, even if every episode that asked was cancelled meanwhile."""
    if not answer.cancelled():
        answer.exception()
