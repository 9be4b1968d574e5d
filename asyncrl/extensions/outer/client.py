"""A member's client of the outer optimizer's service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import xxhash

from asyncrl.data.codec import pack
from asyncrl.errors import ConflictError, InputError, UnavailableError
from asyncrl.extensions.outer.messages import PART_BYTES
from asyncrl.extensions.outer.protocol import Fetched, Joined, Member, Sent
from asyncrl.extensions.outer.tensors import Shapes
from asyncrl.services.http.client import HttpClient

T = TypeVar("T")
CALL_S = 120.0
"""The time limit of one call: a part of a body over a slow link, or an outer step of a large fragment."""
RETRY_S = 10.0
"""How long a call is repeated while nobody answers, as while the service starts again."""
TRIES = 3
"""The tries of a body that comes damaged, or whose round goes while it is read."""


class OuterClient:
    """Implements `OuterService` for the run `run`, which people call `name`. For any thread; calls may overlap."""

    def __init__(self, member: Member, token: str, run: str, name: str) -> None:
        self.member = member
        self.run, self.name = run, name
        self.sent_bytes = self.received_bytes = 0
        """The bytes that were sent of bodies."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outer-client", daemon=True)
        self._thread.start()
        self._token = token
        self._http = HttpClient(member.url, token, RETRY_S)

    def join(self, fragments: Sequence[Shapes], retry_s: float) -> Joined:
        """See `OuterService`. retry_s: how long the call is repeated while nobody answers."""
        config = self.member
        terms = {
            "members": config.members,
            "every": config.every,
            "method": config.method,
            "bits": config.bits,
            "learning_rate": config.learning_rate,
            "momentum": config.momentum,
            "wait_timeout_s": config.wait_timeout_s,
            "fragments": [{name: list(shape) for name, shape in one.items()} for one in fragments],
        }
        body = {"run": self.run, "member": config.member, "name": self.name, "terms": terms}

        async def join() -> Any:
            http = HttpClient(config.url, self._token, retry_s)
            try:
                return await http.post("/v1/outer/join", pack(body), CALL_S)
            finally:
                await http.close()

        return Joined(**self._run(join()))

    def send(self, fragment: int, version: int, body: bytes, start: bool = False) -> Sent:
        """See `OuterService`. Goes on where an earlier call broke off."""
        return self._run(self._send(fragment, version, body, start))

    def fetch(self, fragment: int, wanted: int, have: int, wait_s: float) -> Fetched | None:
        """See `OuterService`."""
        return self._run(self._fetch(fragment, wanted, have, wait_s))

    def leave(self) -> None:
        """See `OuterService`."""
        self._run(self._post("leave"))

    def close(self) -> None:
        self._run(self._http.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _post(self, name: str, **fields: Any) -> Any:
        body = pack({"run": self.run, **fields})
        return await self._http.post(f"/v1/outer/{name}", body, CALL_S + fields.get("wait_s", 0.0))

    async def _send(self, fragment: int, version: int, body: bytes, start: bool) -> Sent:
        checksum = xxhash.xxh3_128_hexdigest(body)
        place = {"fragment": fragment, "version": version}
        for attempt in range(TRIES):
            offset = 0
            while offset < len(body):
                data = body[offset : offset + PART_BYTES]
                received = (await self._post("part", **place, offset=offset, data=data))["received"]
                if received == offset + len(data):
                    self.sent_bytes += len(data)
                # Else the service has more of an earlier call, or has been started again and has less.
                offset = received
            try:
                answer = await self._post("put", **place, size=len(body), checksum=checksum, start=start)
                return Sent(**answer)
            except InputError as error:
                if "damaged" not in str(error) or attempt == TRIES - 1:
                    raise
        raise AssertionError("not reached")

    async def _fetch(self, fragment: int, wanted: int, have: int, wait_s: float) -> Fetched | None:
        for _ in range(TRIES):
            look = {"fragment": fragment, "wanted": max(0, wanted), "have": have, "wait_s": wait_s}
            found = (await self._post("look", **look))["found"]
            if found is None:
                return None
            place = {"fragment": fragment, "round": found["round"], "kind": found["kind"]}
            body = bytearray()
            try:
                while len(body) < found["size"]:
                    size = min(PART_BYTES, found["size"] - len(body))
                    data = (await self._post("read", **place, offset=len(body), size=size))["data"]
                    self.received_bytes += len(data)
                    if not data:
                        break
                    body += data
            except ConflictError:
                # There are newer weights by now.
                continue
            if xxhash.xxh3_128_hexdigest(bytes(body)) == found["checksum"]:
                return Fetched(found["round"], found["kind"], bytes(body), found["members"])
        raise UnavailableError(f"{self.member.url}: fragment {fragment} did not come whole {TRIES} times")
