"""What a buffer tells its replica service. `epoch` is the writer's, as `Attached` gave it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from asyncrl.services.buffer.messages import Call, Url

PART_BYTES = 8 * 2**20
"""The bytes of one piece of a file."""

Whole = Annotated[int, Field(ge=0, lt=2**63)]
FileName = Annotated[str, Field(pattern=r"^(ledger\.sqlite(-wal)?|[0-9]{8,19}\.body)$")]


class Message(Call):
    epoch: Whole


class Bytes(Message):
    """Bytes of the log or of a whole copy, and where they begin there."""

    offset: Whole
    data: bytes


class Adopt(Message):
    """`size`: of the whole copy that has been sent."""

    size: Whole


class Body(Message):
    """A piece of a body's file, and where it begins there."""

    number: Whole
    offset: Whole
    data: bytes


class Bodies(Message):
    """Number, size and checksum of the bodies that the ledger names."""

    bodies: list[Annotated[list[Whole], Field(min_length=3, max_length=3)]]


class Serving(Message):
    """Where the buffer serves."""

    url: Url


class Part(Message):
    """A part of one of the files of the newest copy."""

    name: FileName
    offset: Whole
    size: int = Field(ge=1, le=PART_BYTES)
