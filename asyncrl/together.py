"""Calls that are made at once and belong together: when one fails, the others end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in the order of the calls. Raises what the first one to fail raises.

    Unlike `asyncio.gather` it returns when no call is running any more: the rest are cancelled and waited for.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def to_their_ends(calls: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Let all calls run to their ends, then raise what the first of those that failed raised: for what is closed."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
