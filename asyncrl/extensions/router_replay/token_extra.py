"""The experts to which the engine routed the tokens of a mixture of experts: [R,layers,K] uint8 or uint16.

They are of the first R tokens, at most L - 1: the last token sampled was never read. Layers without experts have zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncrl.data.fields import Fields
from asyncrl.data.token_extras.kind import Tokens, WithoutFiles
from asyncrl.errors import InfrastructureError, InputError

EXPERTS = "routed_experts"
"""Key of `Trajectory.extras`: [R,layers,K] uint8 or uint16, the experts to which the engine routed each of the first R
tokens. R is L - 1 at most: the last token sampled was never read. Layers without experts have zeros."""
DTYPES = ("|u1", "<u2")
OWN_CHOICE = -1
"""In place of an expert: the router chooses by itself."""
MAX_ROUTES = 2**16
"""Experts of one token over all layers."""


class ExpertsCollector:
    """Collects what the engine reports with each turn: the experts [M,layers,K] of what it read since the last one."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """How many tokens, from the first, have their experts."""
        self._pieces: list[np.ndarray] = []

    def add(self, piece: np.ndarray, start: int, end: int) -> None:
        """See `Collector`; the engine never read the last token, nor will it where a turn is the last one."""
        expected = end - 1 - self.num_tokens
        if len(piece) != expected:
            raise InfrastructureError(
                f"the engine reported the experts of {len(piece)} tokens, where it had read {expected} new ones"
            )
        self._pieces.append(piece)
        self.num_tokens += expected

    def drop(self, num_tokens: int) -> None:
        """See `Collector`. No experts are known of tokens after the last turn."""

    def asked(self) -> int:
        """See `Collector`: from which token on."""
        return self.num_tokens

    def value(self) -> np.ndarray | None:
        """See `Collector`."""
        return np.concatenate(self._pieces) if self._pieces else None


class Experts(WithoutFiles):
    """Implements `Kind`."""

    name = EXPERTS
    read_by_models = True
    of_sampler = True
    large_answers = True

    def collector(self) -> ExpertsCollector:
        """See `Kind`."""
        return ExpertsCollector()

    def request(self, value: int) -> dict[str, Any]:
        """See `Kind`."""
        return {"routed_from": value}

    def check_reported(
        self, message: Mapping[str, Any], value: int | None, num_read: int, num_sampled: int
    ) -> None:
        """See `Kind`: experts [M,layers,K] of tokens that were read or sampled."""
        raw = message.get(self.name)
        if raw is None:
            return
        _need(
            value is not None and type(raw) is dict and set(raw) == {"data", "dtype", "shape"},
            "routed_experts: not as asked",
        )
        data, dtype, shape = raw["data"], raw["dtype"], raw["shape"]
        _need(type(dtype) is str and dtype in DTYPES, f"routed_experts.dtype must be one of {list(DTYPES)}")
        _need(
            type(shape) is list
            and [type(n) for n in shape] == [int] * 3
            and shape[0] >= 0
            and min(shape[1:]) >= 1,
            "routed_experts.shape must be [M,layers,K]",
        )
        _need(
            shape[0] <= num_read + num_sampled and shape[1] * shape[2] <= MAX_ROUTES,
            "routed_experts.shape is too large",
        )
        size = shape[0] * shape[1] * shape[2] * np.dtype(dtype).itemsize
        _need(type(data) is bytes and len(data) == size, f"routed_experts.data must have {size} bytes")

    def reported(self, message: Mapping[str, Any]) -> np.ndarray | None:
        """See `Kind`."""
        raw = message.get(self.name)
        return None if raw is None else np.frombuffer(raw["data"], raw["dtype"]).reshape(raw["shape"])

    def encode(self, value: np.ndarray) -> dict[str, Any]:
        """See `Kind`."""
        dtype = np.dtype(value.dtype).newbyteorder("<")
        if dtype.str not in DTYPES or value.ndim != 3:
            raise InputError(
                f"routed_experts must be [R,layers,K] of uint8 or uint16, got {list(value.shape)} of {value.dtype}"
            )
        data = np.ascontiguousarray(value, dtype).tobytes()
        return {self.name: {"dtype": dtype.str, "shape": list(value.shape), "data": data}}

    def decode(self, fields: Fields, tokens: Tokens) -> np.ndarray | None:
        """See `Kind`."""
        if not fields.has(self.name):
            return None
        where, num_tokens = f"{fields.where}.{self.name}", len(tokens.loss_mask)
        raw = Fields(fields.take(self.name, dict), where)
        dtype, shape, data = raw.take("dtype", str), raw.take("shape", list), raw.take("data", bytes)
        raw.close()
        if dtype not in DTYPES:
            raise InputError(f"{where}.dtype must be one of {list(DTYPES)}, got {dtype[:16]!r}")
        if (
            len(shape) != 3
            or any(type(n) is not int or n < 1 for n in shape)
            or shape[0] >= num_tokens
            or shape[1] * shape[2] > MAX_ROUTES
        ):
            raise InputError(
                f"{where}.shape must be [R,layers,K] with R below the {num_tokens} tokens, got {str(shape)[:64]}"
            )
        count = shape[0] * shape[1] * shape[2]
        if len(data) != count * np.dtype(dtype).itemsize:
            raise InputError(f"{where}.data must have {count} items of {dtype}, got {len(data)} bytes")
        return np.frombuffer(data, dtype).reshape(shape)

    def padded(self, values: Sequence[np.ndarray | None], width: int) -> np.ndarray:
        """See `Kind`: [B,width,layers,K] int16, `OWN_CHOICE` where none is recorded."""
        shape = next(value.shape[1:] for value in values if value is not None)
        found = np.full((len(values), width, *shape), OWN_CHOICE, np.int16)
        for row, value in enumerate(values):
            if value is not None:
                found[row, : len(value)] = value
        return found

    def keys(self, value: np.ndarray, length: int) -> np.ndarray:
        """See `Kind`."""
        experts = value.reshape(len(value), -1)
        found = np.full((length, experts.shape[1]), OWN_CHOICE, np.int32)
        found[: len(experts)] = experts[:length]
        return found


def _need(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)
