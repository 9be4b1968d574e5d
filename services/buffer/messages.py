"""The control messages of the buffer service: their fields, ranges, reading and documentation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgpack
from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from asyncrl.buffer.bodies import Stored
from asyncrl.buffer.body_files import MAX_GROUP_BYTES, FileBody
from asyncrl.data.codec import pack_bytes, unpack
from asyncrl.errors import InputError
from asyncrl.http_checks import wrong_fields

MAX_WAIT_S = 300.0
MAX_TASKS = 100_000
MAX_ENGINES = 4096
MAX_BODY_BYTES = 256 * 2**20
"""Of what is no group."""
MAX_GROUPS_PER_PUT = 1024
MSGPACK = "application/msgpack"

Name = Annotated[str, Field(min_length=1, max_length=256)]
Text = Annotated[str, Field(max_length=65_536)]
Address = Annotated[str, Field(min_length=1, max_length=512)]
Url = Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s,@]+$")]
Whole = Annotated[int, Field(ge=0, lt=2**53)]
WaitS = Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)]
M = TypeVar("M", bound="Call")


class Call(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ClosePlan(Call):
    """With `abandon` the tasks that wait are dropped."""

    abandon: bool = False


class AddTasks(Call):
    """Tasks are `{"id", "env", "seed", "split", "data"}`."""

    tasks: list[dict[str, Any]] = Field(max_length=MAX_TASKS)


class Pause(Call):
    paused: bool


class StalenessLimit(Call):
    limit: int = Field(ge=0)


class Worker(Call):
    worker: Name


class Quarantine(Call):
    worker: Name
    reason: Text


class LeaseCall(Call):
    """`request` names the call: its repeat gets the same lease."""

    worker: Name
    wait_s: WaitS
    request: Annotated[str, Field(max_length=256)] = ""


class OneLease(Call):
    lease: Name


class Fail(Call):
    lease: Name
    failure: Literal["environment", "infrastructure"]
    error: Text


class Reserve(Call):
    count: int = Field(ge=1, le=MAX_GROUPS_PER_PUT)


class Written(Call):
    file: Annotated[int, Field(ge=0, lt=2**63)]
    size: Annotated[int, Field(ge=1, le=MAX_GROUP_BYTES)]


class PutFiles(Call):
    """Groups that the caller has written to files which it had reserved."""

    files: list[Written] = Field(min_length=1, max_length=MAX_GROUPS_PER_PUT)


class Take(Call):
    """With `files` the caller reads large groups itself, in the folder that `GET /v1/bodies` names."""

    step: Whole
    wait_s: WaitS
    files: bool = False


class Peek(Call):
    step: Whole
    seen: list[Name] = Field(max_length=MAX_TASKS)
    wait_s: WaitS


class Drop(Call):
    step: Whole
    leases: list[Name] = Field(max_length=MAX_TASKS)
    reason: Name


class Reject(Call):
    step: Whole
    leases: list[Name] = Field(min_length=1, max_length=MAX_TASKS)
    reason: Text
    engines: dict[Address, list[Name]] = Field(default_factory=dict, max_length=MAX_ENGINES)


class FailTaken(Call):
    step: Whole
    leases: list[Name] = Field(min_length=1, max_length=MAX_TASKS)
    reason: Text


class Engine(Call):
    engine: Address


class Version(Call):
    version: Whole


async def group_bodies(chunks: AsyncIterator[bytes], most: int = MAX_GROUPS_PER_PUT) -> AsyncIterator[bytes]:
    """Yield the encoded groups of `{"groups": [encoded group, ...]}` in msgpack, each as soon as it has arrived.

    Raises `InputError` for another form or more than `most` groups, once the rest of the body has been read; what was
    yielded before does not count then.
    """
    body = _Arriving(chunks)
    try:
        if await body.exactly(len(_GROUPS)) != _GROUPS:
            raise InputError("body: must be a map with the one field groups, a list")
        refusal = InputError(f"groups: must hold at most {most} encoded groups, each as bytes")
        count = await body.size(_LISTS)
        if count is None or count > most:
            raise refusal
        for _ in range(count):
            size = await body.size(_BYTES)
            if size is None:
                raise refusal
            yield await body.exactly(size)
        if not await body.ended():
            raise InputError("body: goes on after its groups")
    except InputError:
        # The connection carries other requests, and the client sends all before it reads an answer.
        async for _ in chunks:
            pass
        raise


_GROUPS = b"\x81\xa6groups"
_LISTS = {0xDC: 2, 0xDD: 4} | {0x90 + count: 0 for count in range(16)}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""By first byte of the msgpack of a list or bytes: width of the length behind it, 0 where it is in that byte."""


class _Arriving:
    """A body that is read while it arrives."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")
        """What is left of the chunk that was read last."""

    async def exactly(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises `InputError` when the body ends before."""
        parts, missing = [], size
        while True:
            part, self._left = self._left[:missing], self._left[missing:]
            parts.append(part)
            missing -= len(part)
            if not missing:
                return b"".join(parts)
            if await self.ended():
                raise InputError(f"body: ends {missing} bytes too early")

    async def size(self, widths: Mapping[int, int]) -> int | None:
        """Read the head of a list or of bytes; return how long it is, None where there is something else."""
        first = (await self.exactly(1))[0]
        if first not in widths:
            return None
        return int.from_bytes(await self.exactly(widths[first]), "big") if widths[first] else first & 0x0F

    async def ended(self) -> bool:
        """True when nothing is left; waits for it."""
        while not self._left:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                return True
            self._left = memoryview(chunk)
        return False


async def read(request: Request, kind: type[M]) -> M:
    """Read a control message. Raises `InputError` naming the wrong fields."""
    raw = await request.body()
    try:
        if request.headers.get("content-type", "").startswith("application/json"):
            return kind.model_validate_json(raw or b"{}")
        return kind.model_validate(unpack(raw) if raw else {})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise InputError(wrong_fields(found)) from None


def documented(kind: type[Call]) -> dict[str, Any]:
    """Return `openapi_extra` for a route that reads its body itself."""
    return {
        "requestBody": {
            "content": {"application/json": {"schema": kind.model_json_schema()}},
            "required": True,
        }
    }


def error_to_map(response: JSONResponse) -> dict[str, Any]:
    """The error of one item in an answer about many."""
    return json.loads(bytes(response.body)) | {"status": response.status_code}


def groups_response(groups: Sequence[Stored] | None, awaited: Sequence[str] = ()) -> Response:
    """`{"awaited": [ids], "groups": [bytes] or nil}` in msgpack; the groups are sent without being copied.

    In place of a group that the caller reads itself stands `[file, size, checksum]`.
    """
    head = b"\x82" + msgpack.packb("awaited") + msgpack.packb(tuple(awaited)) + msgpack.packb("groups")
    if groups is None:
        return Response(head + b"\xc0", media_type=MSGPACK)
    chunks = [head, msgpack.Packer().pack_array_header(len(groups))]
    for group in groups:
        if isinstance(group, FileBody):
            chunks.append(msgpack.packb((group.file, group.size, group.checksum)))
        else:
            chunks += pack_bytes(group)
    if sum(map(len, chunks)) < 2**16:
        return Response(b"".join(chunks), media_type=MSGPACK)
    return _Chunks(chunks)


class _Chunks(Response):
    """Sends its parts one after the other, so that a large batch is neither joined nor held twice."""

    def __init__(self, chunks: list[bytes]) -> None:
        length = str(sum(map(len, chunks)))
        super().__init__(headers={"Content-Length": length, "Content-Type": MSGPACK})
        self.chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
