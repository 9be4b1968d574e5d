"""Concurrent calls that belong together: when one fails, the others are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in the order of the calls. Raises the first failure.

    Unlike `asyncio.gather` it returns only when no call is running: the rest are cancelled and awaited.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def to_their_ends(calls: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Run all calls to their ends, then raise the first failure: for closing several things."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
