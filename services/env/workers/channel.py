"""msgpack messages over a connected socket, both ways. Plain data only: nothing in them is ever executed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Self, cast

import msgpack

from asyncrl.errors import InputError

MAX_MESSAGE_BYTES = 64 * 2**20


class Channel(asyncio.Protocol):
    """One end. Messages of one pass of the event loop are sent in one write.

    on_message: called with every message. on_closed: called once when the other end closes or sends invalid msgpack.
    """

    def __init__(self, on_message: Callable[[Any], None], on_closed: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        # Kept, because each new one allocates a quarter of a megabyte. Text may hold lone surrogates, as JSON's can.
        self._packer = msgpack.Packer(unicode_errors="surrogatepass")
        self._unpacker = _unpacker()
        self._pending: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(
        cls, sock: socket.socket, on_message: Callable[[Any], None], on_closed: Callable[[], None]
    ) -> Self:
        """Return a channel over a connected Unix socket, which it owns from now on."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: cls(on_message, on_closed), sock=sock)
        return channel

    def send(self, message: Any) -> None:
        """Queue a message. Raises `InputError` for what msgpack cannot carry or is too long."""
        data = self._encode(message)
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses, so an isinstance check would refuse them.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # Raising here closes the connection, which is right for a stream that lost its framing.
        self._unpacker.feed(data)
        for message in self._unpacker:
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_closed()

    def _encode(self, message: Any) -> bytes:
        try:
            data = self._packer.pack(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(
                f"message cannot be packed: {type(error).__name__}: {str(error)[:200]}"
            ) from None
        if len(data) > MAX_MESSAGE_BYTES:
            raise InputError(f"message must have at most {MAX_MESSAGE_BYTES} bytes packed, got {len(data)}")
        return data

    def _flush(self) -> None:
        data, self._pending = b"".join(self._pending), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _unpacker() -> msgpack.Unpacker:
    return msgpack.Unpacker(
        unicode_errors="surrogatepass", strict_map_key=False, max_buffer_size=2 * MAX_MESSAGE_BYTES
    )
