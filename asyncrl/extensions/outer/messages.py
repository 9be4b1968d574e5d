"""What members tell the outer optimizer's service. Values travel in bodies of `asyncrl.extensions.outer.tensors`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.services.buffer.messages import MAX_WAIT_S, Call, Name, Whole

PART_BYTES = 4 * 2**20
"""The bytes of one piece of a body: what a broken connection costs."""
MAX_FRAGMENTS = 1024

RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Number = Annotated[int, Field(ge=0, lt=MAX_FRAGMENTS)]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Terms(Call):
    """What all members must agree on. The first one's hold."""

    members: int = Field(ge=1)
    every: int = Field(ge=1)
    method: Literal["mean", "gossip"] = "mean"
    """What an earlier version's folder has, which does not say."""
    bits: Literal[4, 8, 32]
    learning_rate: float = Field(gt=0, allow_inf_nan=False)
    momentum: float = Field(ge=0, lt=1)
    wait_timeout_s: float = Field(gt=0, allow_inf_nan=False)
    fragments: list[dict[Name, list[Whole]]] = Field(min_length=1, max_length=MAX_FRAGMENTS)
    """Shapes of each fragment's parameters by name."""


class FromMember(Call):
    run: RunId
    """Made once for each run, and kept in its folder."""


class Join(FromMember):
    """`member` is the run's number, `name` what people call it."""

    member: Whole
    name: Name
    terms: Terms


class Part(FromMember):
    """Bytes of a body and where they begin. `version` is the member's after the steps that the body has."""

    fragment: Number
    version: Whole
    offset: Whole
    data: bytes = Field(max_length=PART_BYTES)


class Put(FromMember):
    """The whole body has been sent: a contribution or, as `start`, weights to begin with."""

    fragment: Number
    version: Whole
    size: Whole
    checksum: Checksum
    start: bool = False


class Look(FromMember):
    """Waits until a fragment has reached round `wanted`; `have` is the round of the weights that the member has."""

    fragment: Number
    wanted: int = Field(ge=0)
    have: int = Field(ge=-1)
    wait_s: float = Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)


class Read(FromMember):
    """A part of what `Look` has announced."""

    fragment: Number
    round: Whole
    kind: Literal["whole", "update"]
    offset: Whole
    size: int = Field(ge=1, le=PART_BYTES)
