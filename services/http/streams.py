"""Streamed answers: a sequence of msgpack values in one HTTP body."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgpack

from asyncrl.errors import InputError, UnavailableError
from asyncrl.services.http.client import RETRIED, HttpClient, error_named

MAX_VALUE_BYTES = 64 * 2**20
MEDIA_TYPE = "application/x-msgpack-sequence"


class StreamClient(HttpClient):
    """An `HttpClient` that also reads such bodies."""

    async def stream(self, path: str, body: Any, timeout_s: float) -> AsyncGenerator[Any, None]:
        """POST `body` as msgpack and yield the values of the answer as they arrive.

        Raises the error class the service named, and `UnavailableError` if it cannot be reached, or stops or
        disconnects between two values; nothing is sent twice.
        """
        where = self.url + path
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._open().post(where, data=msgpack.packb(body), timeout=timeout) as response:
                if response.status != 200 or response.content_type != MEDIA_TYPE:
                    raise await _refusal(response, where)
                unpacker = msgpack.Unpacker(unicode_errors="surrogatepass", max_buffer_size=MAX_VALUE_BYTES)
                async for chunk in response.content.iter_any():
                    unpacker.feed(chunk)
                    for value in unpacker:
                        yield value
        except TimeoutError as error:
            raise UnavailableError(f"{where}: no complete answer within {timeout_s:g} s") from error
        except RETRIED as error:
            raise UnavailableError(f"{where}: {type(error).__name__}: {error}") from error
        except (msgpack.UnpackException, ValueError) as error:
            raise InputError(f"{where}: unreadable answer: {error}") from error


async def _refusal(response: aiohttp.ClientResponse, where: str) -> Exception:
    try:
        problem = dict((await response.json(content_type=None))["error"])
    except (ValueError, TypeError, KeyError):
        problem = {}
    message = f"{where}: {problem.get('message', f'HTTP {response.status}')}"
    return error_named(problem.get("type"), message, response.status, problem.get("retry_after_s"))
