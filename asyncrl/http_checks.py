"""What a service refuses before it builds anything from a request: browser pages, wrong types, growing bodies.

Pure checks, shared by our own services and by the routes we add to vLLM's server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from asyncrl.errors import InputError

MAX_HEADER_BYTES = 32 * 1024
MAX_SHOWN = 8
"""Wrong fields that one answer names."""
JSON = "application/json"
MSGPACK = "application/msgpack"
TYPES = (JSON, MSGPACK)
"""Accepted content types of bodies. A page of another site cannot send them without a preflight request."""
HOSTS_VARIABLE = "ASYNCRL_HOSTS"
"""Further names, separated by commas, for services that do not listen on loopback."""
LOOK_AGAIN_S = 1.0
"""How long a body, headers or a next request are waited for once more when their time is over. What has arrived is read
meanwhile."""
FIRST_BYTES_S = 30.0
LEAST_BYTES_PER_S = 64 * 1024
"""A body must have arrived `FIRST_BYTES_S` after its headers, or come at this rate."""
MAX_OBJECTS = 2**20
"""Objects that one body may create: a map or list of one byte takes 64 in memory."""
FREE_BYTES = 256 * 1024
"""Smaller bodies cannot create many and are not scanned."""


T = TypeVar("T")


class Refusal(NamedTuple):
    """An HTTP status and a message for the caller."""

    status: int
    message: str


class Hosts:
    """The names under which a service may be called. `bound` is where it listens, "" while it does not, and
    `advertised` the host that others were told."""

    def __init__(self, bound: str = "", advertised: str = "") -> None:
        self.bound = bound
        self.advertised = advertised

    def allow(self, header: str) -> bool:
        """True when a `Host` header names this machine. A web page whose own name was made to resolve here sends that
        name."""
        if not self.bound:
            return True
        name = _name(header)
        if is_loopback(self.bound):
            return is_loopback(name)
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in self._names()

    def _names(self) -> set[str]:
        given = os.environ.get(HOSTS_VARIABLE, "").split(",")
        own = (self.bound, self.advertised, "localhost", socket.gethostname(), socket.getfqdn(), *given)
        return {name.strip().lower() for name in own if name.strip()}


def is_loopback(host: str) -> bool:
    """True when only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_headers(
    headers: Iterable[tuple[bytes, bytes]], hosts: Hosts, more_types: Collection[str] = ()
) -> Refusal | None:
    """Return why a request with these headers (names in lower case) is refused, None if it is not.

    more_types: content types that are accepted besides `TYPES`.
    """
    size, host, kind, has_body = 0, "", "", False
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            return Refusal(403, "requests of web pages are refused: they carry an Origin header")
        elif name == b"content-type":
            # Two of them are refused below: the reader of the body might use the other one.
            kind = f"{kind}, {media_type(value)}" if kind else media_type(value)
        elif name == b"transfer-encoding":
            has_body = True
        elif name == b"content-length":
            if not value.isdigit():
                return Refusal(400, "Content-Length must be a number")
            has_body = has_body or int(value) > 0
    if size > MAX_HEADER_BYTES:
        return Refusal(431, f"headers must have at most {MAX_HEADER_BYTES} bytes")
    if not hosts.allow(host):
        message = (
            f"Host {host[:64]!r} does not name this service; call it by its address, or list the name in "
        )
        return Refusal(403, message + HOSTS_VARIABLE)
    if has_body and kind not in (allowed := (*TYPES, *more_types)):
        return Refusal(415, f"Content-Type must be {' or '.join(allowed)}, got {kind[:64]!r}")
    return None


def media_type(value: bytes) -> str:
    """Return the type that a `Content-Type` header names, without its parameters."""
    return value.decode("latin-1").partition(";")[0].strip().lower()


class BodyCheck:
    """Checks one body as it arrives: its size, its rate and, for JSON, how many objects it would create.

    max_bytes: larger bodies are refused. json: whether it is JSON.
    """

    def __init__(self, max_bytes: int, json: bool) -> None:
        self.max_bytes, self.json = max_bytes, json
        self._received, self._objects = 0, 0
        self._start = time.monotonic()
        self._looked_again = False

    async def received(self, receive: Callable[[], Awaitable[T]]) -> T | None:
        """Return the next piece, None where it does not arrive in time."""
        while True:
            try:
                async with asyncio.timeout(max(0.0, self.left_s)):
                    return await receive()
            except TimeoutError:
                if not self._excused():
                    return None

    @property
    def left_s(self) -> float:
        """Seconds within which more data must arrive; below 0 when that is over."""
        return self._start + FIRST_BYTES_S + self._received / LEAST_BYTES_PER_S - time.monotonic()

    def _excused(self) -> bool:
        """Whether more may arrive although the limit has ended: this process did not run meanwhile, and its timers end
        before what has arrived is read. It cannot tell a short pause from none, so that a sender gets once. Moves the
        limit."""
        late_s = -self.left_s
        if late_s < LOOK_AGAIN_S and self._looked_again:
            return False
        self._looked_again = True
        self._start += max(0.0, late_s) + LOOK_AGAIN_S
        return True

    def add(self, chunk: bytes) -> Refusal | None:
        """Add a piece; return why the body is refused, None if it is not."""
        self._received += len(chunk)
        if self._received > self.max_bytes:
            return Refusal(413, f"body must have at most {self.max_bytes} bytes")
        if self.json:
            self._objects += chunk.count(b",") + chunk.count(b"{") + chunk.count(b"[")
            if self._objects > MAX_OBJECTS:
                return Refusal(413, f"body must hold at most {MAX_OBJECTS} values")
        return None

    def late(self) -> Refusal:
        """Return the refusal of a sender that is too slow."""
        return Refusal(408, f"the body came too slowly: {self._received} bytes")


def check_msgpack(body: bytes | bytearray | memoryview) -> None:
    """Raise `InputError` if msgpack bytes would create more than `MAX_OBJECTS` values, without creating them."""
    if len(body) <= FREE_BYTES:
        return
    position, end, announced, left = 0, len(body), 1, 1
    while left and position < end:
        first = body[position]
        left -= 1
        if children := _children(body, position, first):
            left += children
            announced += children
            if announced > MAX_OBJECTS:
                raise InputError(f"message must hold at most {MAX_OBJECTS} values")
        position += _size(body, position, first)


def _children(body: bytes | bytearray | memoryview, position: int, first: int) -> int:
    """Return how many values a map or list holds, 0 for everything else."""
    if 0x80 <= first <= 0x8F:
        return 2 * (first & 0x0F)
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first in _COUNTED:
        width, each = _COUNTED[first]
        return each * int.from_bytes(body[position + 1 : position + 1 + width], "big")
    return 0


def _size(body: bytes | bytearray | memoryview, position: int, first: int) -> int:
    """Return the size of the value itself, without its parts."""
    if first in _MEASURED:
        width, extra = _MEASURED[first]
        return 1 + width + extra + int.from_bytes(body[position + 1 : position + 1 + width], "big")
    return _FIXED[first]


_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""list16, list32, map16, map32: width of the count, values per counted entry."""
_MEASURED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0),
    0xDB: (4, 0),
}  # fmt: skip
"""bin, ext and str: width of the length, further bytes of the header."""
_WIDTHS = {
    0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9, 0xD4: 3, 0xD5: 4,
    0xD6: 6, 0xD7: 10, 0xD8: 18, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5,
}  # fmt: skip
_FIXED = [_WIDTHS.get(b, 1 + (b & 0x1F) if 0xA0 <= b <= 0xBF else 1) for b in range(256)]
"""Bytes of the values of fixed size and of the heads of maps and lists, by first byte."""


def _name(header: str) -> str:
    """Return the host of `HOST[:PORT]`, in lower case, without the brackets of IPv6."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def wrong_fields(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return what pydantic found wrong with a message, by field and without the values, which may be huge, secret or
    impossible to encode."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in islice(errors, MAX_SHOWN)
    )
