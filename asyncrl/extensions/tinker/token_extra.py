"""What a request to an engine says of the sampler that it is for (`vllm_samplers`). No trajectory has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.data.fields import Fields
from asyncrl.data.token_extras.kind import Collector, Tokens, WithoutFiles
from asyncrl.errors import InputError

SAMPLER = "sampler"
"""The kind, and the request's field."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which adapter samples, and where it ends besides the tokens that the request names."""

    adapter: str
    """The folder of the adapter below the server's, "" for the model without one."""
    stop: tuple[str, ...] = ()
    """Texts that end a sequence, which they are part of."""
    to_the_end: bool = False
    """Whether not even the model's own end of text ends it."""


class SamplerKind(WithoutFiles):
    """Implements `Kind`."""

    name = SAMPLER
    read_by_models = False
    of_sampler = False
    large_answers = False

    def collector(self) -> Collector | None:
        """See `Kind`; episodes have none."""
        return None

    def request(self, value: Sampler) -> dict[str, Any]:
        """See `Kind`."""
        return {SAMPLER: {"adapter": value.adapter, "stop": list(value.stop), "to_the_end": value.to_the_end}}

    def check_reported(self, message: Mapping[str, Any], value: Any, num_read: int, num_sampled: int) -> None:
        """See `Kind`; nothing is reported."""

    def reported(self, message: Mapping[str, Any]) -> None:
        """See `Kind`."""

    def encode(self, value: Any) -> dict[str, Any]:
        """See `Kind`; there is no such field."""
        raise InputError("extras: a sampler is of requests alone")

    def decode(self, fields: Fields, tokens: Tokens) -> None:
        """See `Kind`."""

    def padded(self, values: Sequence[Any], width: int) -> None:
        """See `Kind`; models read none."""

    def keys(self, value: Any, length: int) -> np.ndarray | None:
        """See `Kind`; models read none."""
        return None
