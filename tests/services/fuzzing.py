"""Hostile requests to a service over its socket, made from what each of its routes takes.

None may be answered by a server error or not at all, what is refused may have changed nothing, and the service answers
a right request afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import msgpack

from asyncrl.credentials import Credentials, read_credentials
from tests.credentials import RUN, TOKEN

ANSWER_S = 60.0
"""For a machine that is busy. A service that hangs never answers."""
JSON, MSGPACK = "application/json", "application/msgpack"
DEEP = 200_000
"""Levels of nesting."""
GIANT = "9" * 6000
"""Digits of a number that Python does not read."""
ODD: list[Any] = [
    None, True, -1, 0, 1.5, 2**31, 2**53, 2**63 - 1, 2**64 - 1, float("nan"), float("inf"), -1e308, "", "x" * 70_000,
    "\x00", "../../../etc/passwd", "%2e%2e%2f", "\U0001f642", [], {}, [[]], [None], {"a": {"a": {}}}, {"": None},
]  # fmt: skip
ODD_PACKED = [b"", b"\xff", b"../x", -(2**63)]
ODD_JSON = [2**70, 10**400, "\ud83d", "\ud83d\ud83d"]
PATH_PARTS = [
    "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f%2e%2e%2f", "....//....//x", "%00", "x%00.json", "%ff%fe",
    "\\..\\x", "x" * 5000, "%F0%9F%99%82", ".", "/", "//", "%0d%0aX-Y:%20z", "*", "'--",
]  # fmt: skip
"""What may stand where a path has an id."""
NO_KINDS = [
    [], [("Content-Type", "text/plain")], [("Content-Type", "multipart/form-data; boundary=x")],
    [("Content-Type", JSON), ("Content-Type", "text/plain")], [("Content-Type", "")],
]  # fmt: skip
"""Content types that no service takes."""
POST = b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HALVES = [
    b"", b"P", POST, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ", POST + b"Content-Length: 9\r\n\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"\x16\x03\x01\x02\x00\x01", b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]  # fmt: skip
"""How connections begin whose request never comes, and some that begin with something else."""


@dataclass(frozen=True)
class Route:
    """What a route takes. path: with ID where an id stands. body: one that is right, None for a route without. kinds:
    the content types in which it can be sent. too_large: bytes that no body may have, 0 where that is not tried."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    kinds: Sequence[str] = (JSON, MSGPACK)
    too_large: int = 0
    open: bool = False
    """Whether it is answered without a token."""

    def raw(self) -> bytes | None:
        """The body in the first of its kinds."""
        if self.body is None:
            return None
        return json.dumps(self.body).encode() if self.kinds[0] == JSON else msgpack.packb(self.body)


@dataclass
class Fuzzed:
    """A service at `url`. kind: by which credentials know it. state: what no refused request may change. works: makes a
    right request, and raises where it is not answered as it should be."""

    url: str
    kind: str
    routes: Sequence[Route]
    state: Callable[[], Any]
    works: Callable[[], Any]
    token: str = TOKEN
    seen: Counter[tuple[str, int]] = field(default_factory=Counter)

    def ask(
        self, method: str, path: str, raw: bytes | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> tuple[int, bytes]:
        """Return status and body of the answer. Headers are sent as they are."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            if raw is not None:
                connection.putheader("Content-Length", str(len(raw)))
            connection.endheaders(raw)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def send(self, route: Route, raw: bytes | None, kind: str = JSON, path: str = "") -> int:
        """Send with the right token and content type; return the status. Fails on a server error and where a refusal
        has changed something."""
        headers = [("Authorization", f"Bearer {self.token}")]
        headers += [("Content-Type", kind)] if raw is not None else []
        before = self.state()
        status, answer = self.ask(route.method, path or route.path, raw, headers)
        shown = (route.method, path or route.path, (raw or b"")[:300], status, answer[:300])
        assert status < 500, shown
        if status >= 400:
            assert self.state() == before, shown
            if answer.startswith(b"{"):
                assert json.loads(answer)["error"]["message"], shown
        self.seen[route.path, status] += 1
        return status


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every path inside a value, but for that of the value itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def disturbed(body: dict[str, Any], odd: Sequence[Any]) -> Iterator[Any]:
    """Yield the body with each of its parts replaced by each odd value, left out, and with unknown parts beside it."""
    yield from odd
    for path in places(body):
        for value in odd:
            changed, holder = _within(body, path)
            holder[path[-1]] = value
            yield changed
        changed, holder = _within(body, path)
        del holder[path[-1]]
        yield changed
        if isinstance(holder, dict):
            holder["unknown"] = 1
            yield changed


def _within(body: dict[str, Any], path: tuple[Any, ...]) -> tuple[Any, Any]:
    changed = copy.deepcopy(body)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    return changed, holder


def json_bodies(body: dict[str, Any]) -> Iterator[bytes]:
    """Yield the body as JSON, disturbed, torn, and as what no JSON is."""
    for value in disturbed(body, ODD + ODD_JSON):
        yield json.dumps(value).encode()
    whole = json.dumps(body).encode()
    yield from (whole[:end] for end in range(1, len(whole), 1 + len(whole) // 50))
    yield from (
        b"",
        b"\xff\xfe" + whole,
        whole.decode().encode("utf-16"),
        b"\x00",
        whole + whole,
        b'"' + whole,
    )
    deep = b"[" * DEEP + b"]" * DEEP
    yield from (deep, b"[" * DEEP, b'{"a":' * 5000 + b"1" + b"}" * 5000)
    for name in body:
        key = json.dumps(name).encode()
        for text in (
            b'"\xff"',
            b"NaN",
            b"-Infinity",
            b"1e999",
            GIANT.encode(),
            deep,
            b'"\\ud800"',
            b'"\\',
            b"01",
        ):
            others = json.dumps({k: v for k, v in body.items() if k != name}).encode()
            yield others[:-1] + (b", " if len(others) > 2 else b"") + key + b": " + text + b"}"
            # Twice the same key: the reader may take either, and nothing else may happen.
            yield whole[:-1] + b", " + key + b": " + text + b"}"


def packed_bodies(body: dict[str, Any]) -> Iterator[bytes]:
    """Yield the body as msgpack, disturbed, torn, and as what no msgpack is."""
    for value in disturbed(body, ODD + ODD_PACKED):
        yield msgpack.packb(value)
    whole = msgpack.packb(body)
    yield from (whole[:end] for end in range(1, len(whole), 1 + len(whole) // 50))
    yield from (b"", b"\xc1", whole + whole, b"\x81" * DEEP, b"\x91" * DEEP, b"\xdd\xff\xff\xff\xff")
    yield from (b"\xc6\xff\xff\xff\xffab", b"\xc7\x01\x05a", b"\xdf\xff\xff\xff\xff", b"{}", b"\x81\x01\x01")
    for name in body:
        key = msgpack.packb(name)
        others = msgpack.packb({k: v for k, v in body.items() if k != name})[1:]
        head = bytes([0x80 | len(body)])
        if len(body) < 15:
            for value in (
                b"\xa2\xff\xfe",
                b"\x91" * DEEP + b"\xc0",
                b"\xd4\x01\x00",
                b"\xca\x7f\xc0\x00\x00",
            ):
                yield head + others + key + value
                yield bytes([0x80 | len(body) + 1]) + whole[1:] + key + value


MADE = {JSON: json_bodies, MSGPACK: packed_bodies}


def fuzz_bodies(service: Fuzzed) -> None:
    """Send every made body to every route that takes one."""
    for route in service.routes:
        for kind in route.kinds if route.body is not None else ():
            assert route.body is not None
            for raw in MADE[kind](route.body):
                service.send(route, raw, kind)
    service.works()


def fuzz_paths(service: Fuzzed) -> None:
    """Send odd ids, queries and methods."""
    for route in service.routes:
        for part in PATH_PARTS if "ID" in route.path else ():
            body = b"{}" if route.method == "POST" else None
            status = service.send(route, body, path=route.path.replace("ID", part))
            assert status >= 400 or status == 307, (route, part, status)
        path, mark, query = route.path.partition("?")
        for name in [one.partition("=")[0] for one in query.split("&") if mark]:
            for value in ODD + ODD_JSON:
                text = value if isinstance(value, str) else json.dumps(value)
                others = "&".join(one for one in query.split("&") if one.partition("=")[0] != name)
                given = f"{name}={quote(text[:4000].encode('utf-8', 'surrogatepass'))}"
                for asked in (f"{others}&{given}", f"{route.path}&{given}".partition("?")[2], others):
                    service.send(route, None, path=f"{path}?{asked}")
            for raw in ("%ff", "%", "%zz", "[]", "&&=", "=;"):
                service.send(route, None, path=f"{route.path}&{name}={raw}")
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"):
            if not any(one.method == method and one.path == route.path for one in service.routes):
                wrong = Route(method, path.replace("ID", "x"))
                assert service.send(wrong, None) in (400, 401, 404, 405), (method, path)
    service.works()


def fuzz_framing(service: Fuzzed) -> None:
    """Send right bodies as another type, and announce and send ones that are too large."""
    authorized = ("Authorization", f"Bearer {service.token}")
    for route in service.routes:
        raw, before = route.raw(), service.state()
        if raw is None:
            continue
        path = route.path.replace("ID", "x")
        for kind in NO_KINDS:
            assert service.ask(route.method, path, raw, [authorized, *kind])[0] == 415, (path, kind)
        typed = [authorized, ("Content-Type", route.kinds[0])]
        foreign = [*typed, ("Origin", "http://evil.example")]
        assert service.ask(route.method, path, raw, foreign)[0] == 403
        if route.too_large:
            length = [*typed, ("Content-Length", str(route.too_large + 1))]
            assert service.ask(route.method, path, None, length)[0] == 413
            many = b'{"a": [' + b"[]," * 2**20 + b"1]}"
            assert service.ask(route.method, path, many, [authorized, ("Content-Type", JSON)])[0] in (
                400,
                404,
                413,
            )
        assert service.state() == before
    service.works()


def strangers(service: Fuzzed, roles: Sequence[str]) -> Iterator[str]:
    """Yield what stands after `Authorization: ` of callers that no route takes; `roles` may not call this service."""
    other: Credentials = read_credentials("another-run-with-a-token-of-its-own")
    yield from (
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer \x00",
        f"Basic {service.token}",
        f"Bearer  {service.token}x",
    )
    yield from (
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        "Bearer run:" + "0" * 64,
        f"Bearer trainer:{TOKEN}",
    )
    yield "Bearer " + "\xff" * 50
    yield f"Bearer {other.run_token}"
    for role in roles:
        for kind, bearer in RUN.issue(role).bearers.items():
            yield f"Bearer {bearer}"
            if kind == service.kind:
                raise AssertionError(f"{role} calls {kind}")
    for role in ("trainer", "worker", "peer"):
        yield from (f"Bearer {bearer}" for bearer in other.issue(role).bearers.values())


def fuzz_tokens(service: Fuzzed, roles: Sequence[str]) -> None:
    """Send right requests with the token of somebody else, and without."""
    before = service.state()
    for route in service.routes:
        raw, path = route.raw(), route.path.replace("ID", "x")
        for authorization in strangers(service, roles):
            given = [("Authorization", authorization)] if authorization else []
            given += [("Content-Type", route.kinds[0])] if raw is not None else []
            status = service.ask(route.method, path, raw, given)[0]
            assert status in (400, 401, 403) or route.open, (route.path, authorization, status)
            assert service.state() == before, (route.path, authorization)
    service.works()


def fuzz_connections(service: Fuzzed, number: int = 20) -> None:
    """Keep connections whose request does not come, and end some in their midst."""
    address = urlsplit(service.url)
    with contextlib.ExitStack() as held:
        for begun in HALVES * number:
            one = socket.create_connection((address.hostname, address.port), timeout=ANSWER_S)
            held.callback(one.close)
            with contextlib.suppress(OSError):
                one.sendall(begun)
        service.works()
    for route in service.routes:
        # Ended by a reset while the service reads or answers.
        one = socket.create_connection((address.hostname, address.port), timeout=ANSWER_S)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        head = f"{route.method} {route.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.token}\r\n"
        with contextlib.suppress(OSError):
            one.sendall(head.encode() + b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        one.close()
    service.works()
