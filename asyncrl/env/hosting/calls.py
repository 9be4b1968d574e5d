"""Calls the methods of one environment, each in the right place and under a deadline."""

from __future__ import annotations

import asyncio
import inspect
import reprlib
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

from asyncrl.agent_time import of_step
from asyncrl.env.hosting.failures import sort_failure
from asyncrl.env.hosting.threads import SessionThread
from asyncrl.env.protocol import Env
from asyncrl.errors import ConfigError, DeadlineError, InputError
from asyncrl.types import Task


class EnvCalls:
    """One environment. Coroutine methods run on the event loop, plain ones in place or on the session's thread.

    on_overrun: called with +1 when a call on the thread exceeds its deadline, with -1 when it returns after all.
    """

    env: Env

    def __init__(self, env_class: type[Env], name: str, on_overrun: Callable[[int], None]) -> None:
        self.env_class = env_class
        self.name = name
        self._on_overrun = on_overrun
        self._native = {
            what
            for what in ("reset", "step", "close")
            if inspect.iscoroutinefunction(getattr(env_class, what))
        }
        self._thread: SessionThread | None = None
        self._stuck = 0
        """Calls that occupy the thread past their deadline, or wait behind one that does."""

    async def construct(self, task: Task, config: dict[str, Any], timeout_s: float) -> None:
        """Create the environment. Raises `InputError` if it refuses the configuration."""
        threaded = self.env_class.blocking and "step" not in self._native
        try:
            self.env = await self._run(
                lambda: self.env_class(task, **config), "construction", threaded, timeout_s
            )
        except (TypeError, ValueError, ConfigError) as error:
            raise InputError(
                f"env.config: environment {self.name!r} refuses {reprlib.repr(config)}: {error}"
            ) from error
        except DeadlineError:
            raise
        except (Exception, SystemExit) as error:
            raise sort_failure(self.name, "construction", error) from error

    async def call(self, what: str, timeout_s: float, *arguments: Any) -> Any:
        """Call method `what`. Raises `DeadlineError`, or its exception as an `EpisodeError`.

        What an agent has started in a step gets a share of its time (`asyncrl.agent_time`).
        """
        with of_step(timeout_s) if what == "step" else nullcontext():
            return await self._call(what, timeout_s, *arguments)

    async def _call(self, what: str, timeout_s: float, *arguments: Any) -> Any:
        method = getattr(self.env, what)
        try:
            if what in self._native:
                return await self._within(method(*arguments), what, timeout_s)
            if self.env.blocking:
                result = await self._run(lambda: method(*arguments), what, True, timeout_s)
            else:
                result = method(*arguments)
            if inspect.isawaitable(result):
                result = await self._within(result, what, timeout_s)
            return result
        except (Exception, SystemExit) as error:
            if isinstance(error, _Overrun):
                raise
            raise sort_failure(self.name, what, error) from error

    async def close(self, timeout_s: float) -> None:
        """Call `close`, if the environment defines one, and let the thread end.

        Raises as `call` does. A thread that is stuck in an earlier call is not awaited: it closes when it is free.
        """
        try:
            if hasattr(self, "env") and self.env_class.close is not Env.close:
                behind = self._stuck and "close" not in self._native
                await self.call("close", 0.0 if behind else timeout_s)
        finally:
            if self._thread is not None:
                self._thread.stop()

    async def _run(self, method: Callable[[], Any], what: str, threaded: bool, timeout_s: float) -> Any:
        if not threaded:
            return method()
        if self._thread is None:
            self._thread = SessionThread(f"env {self.name}")
        future = self._thread.submit(partial(copy_context().run, method))
        try:
            return await self._within(asyncio.shield(future), what, timeout_s)
        except DeadlineError:
            if not future.done():
                self._count_stuck(1)
                future.add_done_callback(lambda _: self._count_stuck(-1))
            raise

    def _count_stuck(self, change: int) -> None:
        self._stuck += change
        self._on_overrun(change)

    async def _within(self, awaitable: Any, what: str, timeout_s: float) -> Any:
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                return await awaitable
        except TimeoutError as error:
            # The environment's own TimeoutErrors are its failures.
            if not scope.expired():
                raise
            raise _Overrun(f"environment {self.name!r}: {what} took longer than {timeout_s:g} s") from error


class _Overrun(DeadlineError):
    """The deadline of a call, as distinct from a `DeadlineError` that an environment raises."""
