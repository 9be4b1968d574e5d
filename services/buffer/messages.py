"""The control messages of the buffer service: their fields, ranges, reading and documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgpack
from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from asyncrl.data.codec import pack_list, unpack
from asyncrl.errors import InputError
from asyncrl.http_checks import wrong_fields

MAX_WAIT_S = 300.0
MAX_TASKS = 100_000
MSGPACK = "application/msgpack"

Name = Annotated[str, Field(min_length=1, max_length=256)]
Text = Annotated[str, Field(max_length=65_536)]
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


class AddPool(Call):
    """The tasks a curriculum chooses among, and how many it proposes in the whole run; 0 for no limit."""

    tasks: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_TASKS)
    total: Whole


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


class Take(Call):
    step: Whole
    wait_s: WaitS


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


class Version(Call):
    version: Whole


class PutMany:
    """`{"groups": [encoded group, ...]}`, msgpack only."""

    @staticmethod
    def check(body: Any, most: int) -> list[bytes]:
        if not isinstance(body, dict) or set(body) != {"groups"} or not isinstance(body["groups"], list):
            raise InputError("body: must be a map with the one field groups, a list")
        groups = body["groups"]
        if len(groups) > most or not all(isinstance(group, bytes) for group in groups):
            raise InputError(f"groups: must hold at most {most} encoded groups, each as bytes")
        return groups


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


def groups_response(groups: Sequence[bytes] | None, awaited: Sequence[str] = ()) -> Response:
    """`{"awaited": [ids], "groups": [bytes] or nil}` in msgpack; the groups are sent without being copied."""
    head = b"\x82" + msgpack.packb("awaited") + msgpack.packb(tuple(awaited)) + msgpack.packb("groups")
    if groups is None:
        return Response(head + b"\xc0", media_type=MSGPACK)
    chunks = [head, *pack_list(groups)]
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
