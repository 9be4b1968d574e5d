"""Closes connections whose request does not arrive: each holds a file descriptor, and asks for no token.

uvicorn limits how long a connection may be idle between two requests, but neither how long the first may take to begin,
nor how long headers may take to arrive. Bodies have their own limit (`asyncrl.http_checks`).

A process that was suspended finds its timers due before it reads what has arrived meanwhile, so a connection is closed
only after a second look.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from asyncrl.http_checks import LOOK_AGAIN_S

HEADERS_S = 30.0
"""From the opening of a connection, and from the first byte of each later request, until its headers are there."""


class PromptHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with that limit."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._await_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._have_headers()
        super().on_headers_complete()

    def _await_headers(self) -> None:
        self._have_headers()
        self._late = self.loop.call_later(HEADERS_S, self._headers_are_late)

    def _headers_are_late(self) -> None:
        self._late = self.loop.call_later(LOOK_AGAIN_S, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        # uvicorn takes this timer back when data arrives.
        self.timeout_keep_alive_task = self.loop.call_later(LOOK_AGAIN_S, super().timeout_keep_alive_handler)

    def _have_headers(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def use_for_all_servers() -> None:
    """Have servers that others configure, such as vLLM's, use it. Call before they are made."""
    from uvicorn import config

    config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{PromptHttpProtocol.__name__}"
