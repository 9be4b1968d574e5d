"""A judge or reward model behind an endpoint: requests are batched, sampled several times, and remembered.

| kind | request | answer |
|---|---|---|
| `chat` | OpenAI `/v1/chat/completions` with the filled prompt | numbers at the end of the text (`questions`) |
| `score` | `{"items": [{"task", "messages", "reward"}, ...]}` to the URL itself | `{"scores": [score, ...]}` |
| `folder` | the same to `/v1/score` of the run's own process (`service`) | the same, with `"cut": [place, ...]` |

A score is a number, an object of numbers by label, or `{"error": text}` or null for a conversation that has none.

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
from asyncrl.extensions.judge.budget import Budget, OwnBudget
from asyncrl.extensions.judge.endpoint import TIMEOUT_S, Endpoint, chat_url, judge_errors, log
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest, Scores, chat_body, read_reply, shown
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.extensions.judge.votes import voted
from asyncrl.services.http.batching import RequestBatcher

BATCH_SIZE = 32
REMEMBERED = 65536
TELL_EVERY_S = 60.0
"""Seconds between two lines on the same thing."""
OWN_TIMEOUT_S = 600.0
"""For which a process of the run is waited for: others are not answered meanwhile, and asking again helps nobody."""


class JudgeClient:
    """Implements `judging.Judge` over HTTP.

    outage_s: how long a server that is away is waited for. url: of the server, in place of the configured one. budget:
    what counts in place of this process alone, where the configuration bounds anything.
    """

    def __init__(
        self,
        config: JudgeConfig,
        key: str = "",
        outage_s: float = 0.0,
        url: str = "",
        budget: Budget | None = None,
    ) -> None:
        self.config = config
        self.judged = 0
        """Answers the endpoint gave; the rest came from memory."""
        self.samples_failed = 0
        """Replies that did not count, of questions to which others did."""
        self.conversations_cut = 0
        """Conversations of which a reward model has read a shorter form."""
        self._said_s: dict[str, float] = {}
        self._told = 0
        self._known: OrderedDict[str, Scores] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Scores]] = {}
        size = 1 if config.chats else BATCH_SIZE
        self._requests = RequestBatcher[tuple[str, JudgeRequest]](self._send, size)
        url = url or (chat_url(config.url) if config.chats else config.url.rstrip("/"))
        timeout_s = TIMEOUT_S if config.url else OWN_TIMEOUT_S
        budget = (budget or OwnBudget(config)) if config.budgeted else None
        self.endpoint = Endpoint(url, key, budget, outage_s, timeout_s, config.max_total_tokens > 0)

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
            if self.config.chats:
                scores = [await self._sampled(requests[0])]
            else:
                scores = await self._scored(requests)
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
        scores = await self.endpoint.ask(body, lambda reply: _read_scores(reply, len(requests), self.config))
        if cut := sum(isinstance(one, Scores) and one.cut is True for one in scores):
            self.conversations_cut += cut
            if self._due("cut"):
                log.warning(
                    "judge: %d conversations so far were longer than the reward model reads; it has read them with "
                    "their longest messages cut in the middle (component judge_cut)",
                    self.conversations_cut,
                )
        return scores

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
        if not self._due("failed"):
            return
        log.warning(
            "judge: %d replies did not count since this was last said; their episodes have the vote of the others "
            "(judge.samples=%d); the last: %s",
            self.samples_failed - self._told,
            self.config.samples,
            error,
        )
        self._told = self.samples_failed

    def _due(self, what: str) -> bool:
        """Return whether something may be said again, and note that it is."""
        if now_s() - self._said_s.get(what, float("-inf")) < TELL_EVERY_S:
            return False
        self._said_s[what] = now_s()
        return True


def _read_scores(reply: Any, count: int, config: JudgeConfig) -> list[Scores | JudgeError]:
    scores = reply.get("scores") if isinstance(reply, dict) else None
    if not isinstance(scores, list) or len(scores) != count:
        raise JudgeError(f'expected {{"scores": [{count} numbers]}}, got {shown(reply)}')
    cut = reply.get("cut")
    if cut is not None and not (isinstance(cut, list) and all(isinstance(one, int) for one in cut)):
        raise JudgeError(f"cut must be a list of places, got {shown(cut)}")
    return [
        _read_score(score, config, None if cut is None else place in cut)
        for place, score in enumerate(scores)
    ]


def _read_score(score: Any, config: JudgeConfig, cut: bool | None) -> Scores | JudgeError:
    """Return the score of one conversation of a batch; an invalid one fails that conversation alone."""
    if isinstance(score, dict) and "error" in score:
        return JudgeError(f"the judge could not score this conversation: {shown(score['error'])}")
    if not config.outputs:
        number = _read_number(score)
        return number if isinstance(number, JudgeError) else Scores({OVERALL: number}, cut=cut)
    # A head with one output gives it without its label.
    given = score if isinstance(score, dict) else dict.fromkeys(config.outputs.values(), score)
    if len(config.outputs) > 1 and not isinstance(score, dict):
        return JudgeError(
            f"the judge must give a number for each of {sorted(config.outputs.values())}, got {score!r:.100}"
        )
    found = {name: _read_number(given.get(label)) for name, label in config.outputs.items()}
    for one in found.values():
        if isinstance(one, JudgeError):
            return one
    return Scores({name: one for name, one in found.items() if not isinstance(one, JudgeError)}, cut=cut)


def _read_number(score: Any) -> float | JudgeError:
    if not isinstance(score, int | float) or isinstance(score, bool):
        return JudgeError(f"the judge gave {score!r:.100} for this conversation")
    # Compared as it is: an integer may be beyond every float.
    if not -MAX_REWARD <= score <= MAX_REWARD:
        return JudgeError(f"a score must be a number up to ±{MAX_REWARD:g}, got {shown(score)}")
    return float(score)


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
    if config.chats:
        asked = chat_body(config, request)
    elif config.kind == "folder":
        asked = request.messages
    else:
        task = request.task
        asked = [task.env, task.data, task.seed, request.messages, request.reward]
    content = json.dumps(asked, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _retrieve(answer: asyncio.Future[Scores]) -> None:
    """Mark a failure as retrieved, even if every episode that asked was cancelled meanwhile."""
    if not answer.cancelled():
        answer.exception()
