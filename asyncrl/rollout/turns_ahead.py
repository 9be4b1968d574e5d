"""First turns of agents that are sampled before the environment addresses them, see `Step.ahead`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from asyncrl.chat.conversation import Conversation, Conversations
from asyncrl.generation import Generated

Sample = Callable[[Conversation, str, int, str], Coroutine[Any, Any, Generated]]
"""Samples the next turn of a conversation: of which agent, as which turn of the episode, and what that turn is called
in the id of its request."""


class TurnsAhead:
    """The turns of one episode that are being sampled ahead. What is not used is given up when the episode ends."""

    def __init__(self, conversations: Conversations, sample: Sample) -> None:
        self._conversations = conversations
        self._sample = sample
        self._turns: dict[str, asyncio.Task[Generated]] = {}

    async def __aenter__(self) -> TurnsAhead:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._turns.values():
            task.cancel()
        await asyncio.gather(*self._turns.values(), return_exceptions=True)

    def start(self, turn: int) -> None:
        """Sample the first turns of all agents whose conversations are open ahead; `turn` is the first one's number."""
        waiting = [name for name in self._conversations.ahead if name not in self._turns]
        for number, name in enumerate(waiting, turn):
            # Its agent may be addressed in a later turn than this number says: others take several before.
            asked = self._sample(self._conversations.ahead[name], name, number, f"ahead-{number}")
            self._turns[name] = asyncio.create_task(asked)

    async def turn(self, number: int) -> Generated:
        """Return the next turn of the current agent: the one that was sampled ahead, or one that is sampled now."""
        conversations = self._conversations
        if (task := self._turns.pop(conversations.agent, None)) is not None:
            return await task
        return await self._sample(conversations.current, conversations.agent, number, str(number))
