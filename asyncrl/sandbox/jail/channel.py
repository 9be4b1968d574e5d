"""JSON messages with file descriptors over a local packet socket; the launcher's and the zygote's wire format.

Standard library only: this also runs inside a jail.
"""

from __future__ import annotations

import array
import json
import socket
from typing import Any

MAX_MESSAGE_BYTES = 128 * 1024
MAX_FDS = 16


def encode(message: dict[str, Any]) -> bytes:
    """Raises `ValueError` for a message no packet holds."""
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} fit (write long input to a file)"
        )
    return data


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one message; raises `BlockingIOError` when the socket is full and non-blocking."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([encode(message)], rights)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message and its descriptors (close-on-exec); None if the other side is gone."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
    try:
        data, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return (json.loads(data), list(fds)) if data else None
