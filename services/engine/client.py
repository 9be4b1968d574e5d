"""Client of one engine: batches concurrent turns into few HTTP requests and reads answers as they finish.

The request path limits short agent turns, so requests that become ready in one pass of the event loop are sent in one
body. A dropped connection fails only the requests it carried; each is sent once more.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import msgpack
import numpy as np

from asyncrl.data.token_extras.table import reported_extras, request_fields, request_files
from asyncrl.errors import InfrastructureError, InputError
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.http_checks import LEAST_BYTES_PER_S
from asyncrl.patience import Patience
from asyncrl.services.engine.control import EngineControl, error_text
from asyncrl.services.engine.messages import (
    GarbageError,
    check_answer,
    check_refusal,
    frame_limit,
    lists_tokens,
    unpacked,
)
from asyncrl.services.http.batching import RequestBatcher

log = logging.getLogger("asyncrl.engine")

MAX_REQUESTS_PER_CALL = 64
FRAME_S = 30.0
END_S = 2.0
"""How long the end of a stream may take after its last answer, which counts then."""
REFUSED = (400, 413, 415, 422)
"""Statuses of a call that is at fault itself. Any other one says something of the engine."""
ABORT_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.2
"""Pause before the second attempt; each further one waits this much longer."""


@dataclass(slots=True)
class _Pending:
    request: GenerateRequest
    answer: asyncio.Future[Generated]
    attempts: int = 0
    sent: bool = False


class EngineClient(EngineControl):
    """Implements `generation.Generator` over one engine's `/asyncrl/v1` routes.

    url, token: see `EngineControl`. timeout_s: for a turn, from its request to its last token; the engine is told to
    abort what is given up. batch_delay_s: minimum seconds between two calls; requests that become
    ready meanwhile are sent together. vocab_size: of the model, 0 where it is not known.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout_s: float = 600.0,
        max_attempts: int = 3,
        batch_delay_s: float = 0.0,
        vocab_size: int = 0,
    ) -> None:
        super().__init__(url, token, timeout_s)
        self._patience = Patience(timeout_s)
        self.vocab_size = vocab_size
        self.max_attempts = max_attempts
        self._turns = RequestBatcher[_Pending](self._call, MAX_REQUESTS_PER_CALL, batch_delay_s)
        self._aborts = RequestBatcher[str](self._abort, MAX_REQUESTS_PER_CALL)
        self.in_flight = 0
        self._busy_s = 0.0
        self._busy_since = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds during which at least one request was running."""
        return self._busy_s + (time.monotonic() - self._busy_since if self.in_flight else 0.0)

    async def close(self) -> None:
        """Cancel running and queued requests and close connections."""
        for pending in await self._turns.close():
            pending.answer.cancel()
        await self._aborts.close()
        await super().close()

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one turn. See `Generator`.

        When it is cancelled, or the engine has answered nobody for `timeout_s`, the engine stops working on it.
        """
        pending = _Pending(request, asyncio.get_running_loop().create_future())
        if self.in_flight == 0:
            self._busy_since = time.monotonic()
        self.in_flight += 1
        try:
            self._turns.add(pending)
            return await self._patience.wait(pending.answer)
        except (TimeoutError, asyncio.CancelledError) as error:
            if pending.sent and self.http is not None:
                self._aborts.add(request.id)
            if isinstance(error, asyncio.CancelledError):
                raise
            message = f"engine {self.url}: no answer to {request.id} within {self.timeout_s:g} s"
            raise InfrastructureError(f"{message}, nor to any other request") from None
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._busy_s += time.monotonic() - self._busy_since

    async def _call(self, batch: list[_Pending]) -> None:
        """Have a batch answered. Wherever it is cancelled, no caller is left waiting."""
        left = {p.request.id: p for p in batch if not p.answer.done()}
        if not left:
            return
        try:
            if reason := await self._exchange(left):
                await self._retry(list(left.values()), reason)
        except GarbageError as error:
            # What it sends to others is no better: no further attempt is made here.
            failure = f"engine {self.url} answers with garbage: {error}"
            for pending in left.values():
                _fail(pending, GarbageError(failure))
        except InputError as error:
            refused = list(left.values())
            if len(refused) == 1:
                _fail(refused[0], InputError(f"engine {self.url}: {error}"))
            else:
                # The whole batch was refused, for example as too large. Smaller ones show which request is at fault.
                await asyncio.gather(self._call(refused[::2]), self._call(refused[1::2]))
        except asyncio.CancelledError:
            for pending in left.values():
                pending.answer.cancel()
            raise
        except Exception as error:
            # A bug must crash the callers instead of letting them wait for their timeouts.
            for pending in left.values():
                _fail(pending, error)

    async def _exchange(self, left: dict[str, _Pending]) -> str:
        """Send the pending requests and deliver the answers; return why some are missing, "" if none is.

        Raises `InputError` where the engine refuses the call, and `GarbageError` where what it sends is no answer.
        """
        requests = [pending.request for pending in left.values()]
        limit, many = frame_limit(requests), lists_tokens(requests)
        try:
            body = msgpack.packb(_body(requests))
            for pending in left.values():
                pending.sent = True
            async with self.session().post(f"{self.url}/asyncrl/v1/generate", data=body) as response:
                if response.status == 503:
                    raise ConnectionError(await error_text(response))
                if response.status in REFUSED:
                    raise InputError(await error_text(response))
                if response.status != 200:
                    raise GarbageError(f"HTTP {response.status}: {await error_text(response)}")
                while left:
                    message = unpacked(await _frame(response.content, limit), many)
                    if len(left) == 1:
                        await _refuse_more(response.content)
                    self._deliver(left, message)
        except asyncio.IncompleteReadError:
            return "the engine closed the stream early"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _deliver(self, left: dict[str, _Pending], message: dict[str, Any]) -> None:
        """Give a frame to the request it answers. Raises `GarbageError` for one that answers none."""
        name = message.get("id")
        if type(name) is not str or name not in left:
            raise GarbageError("it answers a request that it was not sent")
        pending = left[name]
        try:
            if "error" in message:
                check_refusal(message)
            else:
                check_answer(message, pending.request, self.vocab_size)
        except GarbageError as error:
            raise GarbageError(f"{error} (request {name})") from None
        del left[name]
        if "error" in message:
            # What is refused, other engines would refuse, too.
            _fail(pending, (InputError if message["refused"] else InfrastructureError)(message["error"]))
        elif not pending.answer.done():
            pending.answer.set_result(decode_generated(message, self.url))

    async def _abort(self, ids: list[str]) -> None:
        """Have the engine abort requests whose answers nobody waits for any more; it may have died meanwhile."""
        try:
            await self.request("abort", {"ids": ids}, ABORT_TIMEOUT_S)
        except (InfrastructureError, InputError) as error:
            log.warning("%d requests were given up and not aborted: %s", len(ids), error)

    async def _retry(self, unanswered: list[_Pending], reason: str) -> None:
        """Queue them again together after a pause; fail those that have used all their attempts."""
        again = []
        for pending in unanswered:
            pending.attempts += 1
            if pending.attempts < self.max_attempts:
                again.append(pending)
            else:
                failure = f"engine {self.url}: {reason} ({pending.attempts} attempts)"
                _fail(pending, InfrastructureError(failure))
        if again:
            await asyncio.sleep(RETRY_PAUSE_S * max(pending.attempts for pending in again))
        for pending in again:
            if not pending.answer.done():
                self._turns.add(pending)


def _body(requests: Sequence[GenerateRequest]) -> dict[str, Any]:
    """Return what one call sends: the requests, and what they share."""
    return {
        "requests": [_encode(request) for request in requests],
        **request_files([request.extras for request in requests]),
    }


def _encode(request: GenerateRequest) -> dict[str, Any]:
    optional: dict[str, Any] = {}
    if request.decoding is not None:
        optional["decoding"] = asdict(request.decoding)
    if request.version is not None:
        optional["version"] = request.version
    return {
        **optional,
        **request_fields(request.extras),
        "id": request.id,
        "token_ids": np.ascontiguousarray(request.token_ids, dtype="<i4").tobytes(),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stop_token_ids": list(request.stop_token_ids),
        "min_version": request.min_version,
        "order": request.order,
    }


def decode_generated(message: dict[str, Any], engine: str = "") -> Generated:
    """Turn one checked frame into arrays; every token gets the version of its span. engine: where it is from."""
    token_ids = np.frombuffer(message["token_ids"], dtype="<i4")
    versions = np.full(len(token_ids), -1, dtype=np.int32)
    for version, start, end in message["spans"]:
        versions[start:end] = version
    return Generated(
        token_ids=token_ids,
        logprobs=np.frombuffer(message["logprobs"], dtype="<f4"),
        versions=versions,
        finish_reason=message["finish_reason"],
        cached_tokens=message["cached_tokens"],
        top_logprobs=_likeliest(message.get("top_logprobs", ())),
        prompt_logprobs=_likeliest(message.get("prompt_logprobs", ())),
        extras=reported_extras(message),
        engine=engine,
    )


def _likeliest(raw: Sequence[Sequence[Sequence[Any]]]) -> tuple[dict[int, float], ...]:
    """Read [token ids, log-probabilities] per position."""
    return tuple(dict(zip(ids, logprobs, strict=True)) for ids, logprobs in raw)


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)


async def _refuse_more(content: aiohttp.StreamReader) -> None:
    """Read the end of a stream whose last answer has come. Raises `GarbageError` where another one follows."""
    try:
        more = await asyncio.wait_for(content.read(1), END_S)
    except (TimeoutError, aiohttp.ClientError, OSError):
        # The answers are whole.
        return
    if more:
        raise GarbageError("it answers more than it was asked")


async def _frame(stream: aiohttp.StreamReader, limit: int) -> bytes:
    """Return the next frame. It may begin at any time, and must then come at once.

    Raises `GarbageError` for one of more than `limit` bytes and one that comes too slowly.
    """
    first, size = await stream.readexactly(1), 0
    try:
        async with asyncio.timeout(FRAME_S):
            (size,) = struct.unpack("<I", first + await stream.readexactly(3))
        if size > limit:
            raise GarbageError(f"it announces {size} bytes, where {limit} are the most")
        async with asyncio.timeout(FRAME_S + size / LEAST_BYTES_PER_S):
            return await stream.readexactly(size)
    except TimeoutError:
        raise GarbageError(f"it has begun an answer of {size} bytes and does not end it") from None
