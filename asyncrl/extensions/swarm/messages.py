"""What runs tell the service of shared rollouts. Groups travel encoded, by `asyncrl.data.codec.encode_group`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from asyncrl.extensions.swarm.curation import MAX_GROUP_BYTES
from asyncrl.services.buffer.messages import Call, Name, Whole

MAX_GROUPS = 64
"""The most groups of one call."""
MAX_ANSWER_BYTES = 32 * 2**20
"""The most bytes of the groups of one answer, beyond its first."""

RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Family = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class FromPeer(Call):
    """`run` is made once for each run and kept in its folder; `family` is the hash of its tokenizer."""

    run: RunId
    family: Family


class Publish(FromPeer):
    """`name` is what people call the run."""

    name: Name
    groups: list[Annotated[bytes, Field(min_length=1, max_length=MAX_GROUP_BYTES)]] = Field(
        max_length=MAX_GROUPS
    )


class Fetch(FromPeer):
    """The newest groups of others that came after number `after` of the service's `store`; of another, all."""

    store: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
    after: Whole
    count: int = Field(ge=1, le=MAX_GROUPS)
