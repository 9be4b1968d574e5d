"""The protocol-buffer messages of Tinker's protocol: what the SDK sends to `forward_backward`, and what it reads back.

The fields and their numbers are those of the SDK. Arrays are the bytes of their items in little-endian order: token ids
int32, log-probabilities float32, offsets int64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from asyncrl.errors import InputError

MEDIA_TYPE = "application/x-protobuf"
FLOAT32, INT64, INT32 = 1, 2, 3
_DTYPES = {FLOAT32: "<f4", INT64: "<i8", INT32: "<i4"}
_VARINT, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
"""How a field is written: as a number, with its length before it, or in so many bytes."""
STOP_REASONS = {"stop": 0, "length": 1}
_PACKAGE = "asyncrl_tinker"
_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "SparseCsr": ((1, "values", "bytes"), (2, "crow_indices", "bytes"), (3, "col_indices", "bytes")),
    "Tensor": (
        (1, "dense", "bytes"),
        (2, "sparse_csr", "SparseCsr"),
        (3, "dtype", "int32"),
        (4, "shape", "int64*"),
    ),
    "EncodedText": ((1, "tokens", "bytes"),),
    "Chunk": ((1, "encoded_text", "EncodedText"), (2, "image", "bytes"), (3, "dmel", "bytes")),
    "TensorEntry": ((1, "key", "string"), (2, "value", "Tensor")),
    "Datum": ((1, "model_input", "Chunk*"), (2, "loss_fn_inputs", "TensorEntry*")),
    "NumberEntry": ((1, "key", "string"), (2, "value", "double")),
    "ConfigValue": ((1, "number", "double"), (2, "text", "string")),
    "ConfigEntry": ((1, "key", "string"), (2, "value", "ConfigValue")),
    "ForwardBackwardRequest": (
        (1, "model_id", "string"),
        (2, "seq_id", "int32"),
        (3, "data", "Datum*"),
        (4, "loss_fn", "string"),
        (5, "loss_fn_config", "NumberEntry*"),
        (6, "forward_only", "bool"),
        (7, "loss_fn_config_v2", "ConfigEntry*"),
    ),
    "BatchedTensor": (
        (1, "data", "bytes"),
        (2, "offsets", "bytes"),
        (3, "dtype", "int32"),
        (4, "trailing_shape", "int64*"),
    ),
    "FieldEntry": ((1, "key", "string"), (2, "value", "BatchedTensor")),
    "ArrayRecord": ((1, "type_tag", "string"), (2, "fields", "FieldEntry*"), (3, "num_datums", "int64")),
    "ForwardBackwardOutput": (
        (1, "loss_fn_output_type", "string"),
        (2, "loss_fn_outputs", "ArrayRecord*"),
        (3, "metrics", "NumberEntry*"),
    ),
    "TopkLogprobs": (
        (1, "token_ids", "bytes"),
        (2, "logprobs", "bytes"),
        (3, "k", "uint32"),
        (4, "length", "uint32"),
    ),
    "SampledSequence": (
        (1, "stop_reason", "int32"),
        (2, "tokens", "bytes"),
        (3, "logprobs", "bytes"),
        (4, "topk_sampled_logprobs", "TopkLogprobs"),
    ),
    "SampleResponse": (
        (1, "sequences", "SampledSequence*"),
        (2, "prompt_logprobs", "bytes"),
        (3, "topk_prompt_logprobs", "TopkLogprobs"),
        (4, "prompt_cache_hit_tokens", "int32"),
    ),
}
"""(number, name, type) of the fields of each message; "*" repeats one. A map is its entries, which have the same bytes.
Enumerations are numbers."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, key, kind in fields:
            plain = kind.rstrip("*")
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            field = message.field.add(name=key, number=number, label=label)
            if plain in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{plain}"
            else:
                field.type = getattr(kinds, f"TYPE_{plain.upper()}")
                # So that bytes which are empty are told from bytes which are not there.
                if label == kinds.LABEL_OPTIONAL:
                    field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{key}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


CLASSES = _classes()


@dataclass(frozen=True, slots=True)
class Datum:
    """One row to compute a loss of."""

    tokens: np.ndarray
    """[N] int64, what the model reads."""
    inputs: Mapping[str, Input]
    """By their names, such as "target_tokens", "weights", "advantages"."""


@dataclass(frozen=True, slots=True)
class Input:
    """One array that a loss reads. A sparse one, of rows and columns, holds the listed values alone."""

    values: np.ndarray
    """The items, flat; float32 or int64."""
    shape: tuple[int, ...]
    rows: np.ndarray | None = None
    """The row of each listed value; None where all are there."""
    columns: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """One request for a forward pass, and a backward pass unless it says otherwise."""

    model_id: str
    seq_id: int
    data: Sequence[Datum]
    loss: str
    settings: Mapping[str, float | str]
    forward_only: bool
    body: bytes
    """What it was read from."""


def request_head(body: bytes) -> tuple[str, int]:
    """Return the model and the number of a `forward_backward` request. Raises `InputError` for other bytes.

    The rows are passed over, not read: there may be many megabytes of them, while other clients wait.
    """
    model, number, place = b"", 0, 0
    try:
        while place < len(body):
            tag, place = _varint(body, place)
            kind = tag & 7
            if kind == _LENGTH:
                length, place = _varint(body, place)
                if tag >> 3 == 1:
                    model = body[place : place + length]
                place += length
            elif kind == _VARINT:
                value, place = _varint(body, place)
                number = value if tag >> 3 == 2 else number
            else:
                place += _FIXED[kind]
        if place == len(body):
            return model.decode(), number
    except (IndexError, KeyError, UnicodeDecodeError):
        pass
    raise InputError(f"body: {len(body)} bytes that are no ForwardBackwardRequest of the protocol")


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = body[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise IndexError


def read_request(body: bytes) -> ForwardBackward:
    """Read a `forward_backward` request. Raises `InputError` naming the row and the array that cannot be read."""
    message = _parsed("ForwardBackwardRequest", body)
    settings: dict[str, float | str] = {entry.key: entry.value for entry in message.loss_fn_config}
    for entry in message.loss_fn_config_v2:
        text = entry.value.HasField("text")
        settings[entry.key] = entry.value.text if text else entry.value.number
    data = [_read_datum(index, datum) for index, datum in enumerate(message.data)]
    return ForwardBackward(
        message.model_id, message.seq_id, data, message.loss_fn, settings, message.forward_only, body
    )


def _parsed(name: str, body: bytes) -> Any:
    message = CLASSES[name]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise InputError(f"body: {len(body)} bytes that are no {name} of the protocol") from error
    return message


def _read_datum(index: int, datum: Any) -> Datum:
    tokens = []
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise InputError(
                f"data[{index}].model_input: holds an image or audio; this server reads tokens alone"
            )
        tokens.append(_items(chunk.encoded_text.tokens, "<i4", f"data[{index}].model_input"))
    inputs = {
        entry.key: _read_tensor(entry.value, f"data[{index}].{entry.key}") for entry in datum.loss_fn_inputs
    }
    return Datum(np.concatenate(tokens).astype(np.int64) if tokens else np.zeros(0, np.int64), inputs)


def _read_tensor(tensor: Any, where: str) -> Input:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InputError(f"{where}: unknown type of items {tensor.dtype}; there are {sorted(_DTYPES)}")
    shape = tuple(tensor.shape)
    if not tensor.HasField("sparse_csr"):
        values = _items(tensor.dense, dtype, where)
        shape = shape or (len(values),)
        if any(size < 0 for size in shape) or int(np.prod(shape, dtype=np.int64)) != len(values):
            raise InputError(f"{where}: {len(values)} items do not have the shape {list(shape)}")
        return Input(values, shape)
    sparse = tensor.sparse_csr
    values = _items(sparse.values, dtype, where)
    starts, columns = (_items(part, "<i8", where) for part in (sparse.crow_indices, sparse.col_indices))
    if (
        len(shape) != 2
        or len(starts) != shape[0] + 1
        or len(columns) != len(values)
        or starts[0] != 0
        or starts[-1] != len(values)
        or (np.diff(starts) < 0).any()
        or (len(columns) and not 0 <= columns.min() <= columns.max() < shape[1])
    ):
        raise InputError(
            f"{where}: its rows and columns are not those of {len(values)} items of {list(shape)}"
        )
    return Input(values, shape, np.repeat(np.arange(shape[0]), np.diff(starts)), columns)


def _items(raw: bytes, dtype: str, where: str) -> np.ndarray:
    if len(raw) % np.dtype(dtype).itemsize:
        raise InputError(f"{where}: {len(raw)} bytes are no whole items")
    return np.frombuffer(raw, dtype)


def forward_backward_output(logprobs: Sequence[np.ndarray], metrics: Mapping[str, float]) -> bytes:
    """Return the answer to a `forward_backward`: for each datum its log-probabilities [N] or [N,K], float32."""
    message = CLASSES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord")
    for key, value in metrics.items():
        message.metrics.add(key=key, value=value)
    # A record holds rows with equal further axes; the SDK joins the records in their order.
    start = 0
    while start < len(logprobs):
        trailing = logprobs[start].shape[1:]
        end = start
        while end < len(logprobs) and logprobs[end].shape[1:] == trailing:
            end += 1
        rows = [np.ascontiguousarray(one, "<f4") for one in logprobs[start:end]]
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(rows))
        batched = record.fields.add(key="logprobs").value
        batched.data = b"".join(one.tobytes() for one in rows)
        batched.offsets = np.cumsum([0, *(one.nbytes for one in rows)], dtype="<i8").tobytes()
        batched.dtype = FLOAT32
        batched.trailing_shape.extend(trailing)
        start = end
    encoded: bytes = message.SerializeToString()
    return encoded


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled sequence."""

    tokens: np.ndarray
    """[N] int32."""
    logprobs: np.ndarray
    """[N] float32."""
    stop_reason: str
    """"stop" or "length"."""
    likeliest: Sequence[Mapping[int, float]] = ()
    """Per token, log-probabilities of the likeliest tokens, likeliest first."""


def sample_response(
    sequences: Sequence[Sampled],
    prompt_logprobs: np.ndarray | None = None,
    likeliest_of_prompt: Sequence[Mapping[int, float]] = (),
    num_likeliest: int = 0,
    num_likeliest_of_prompt: int = 0,
    cached_tokens: int = 0,
) -> bytes:
    """Return the answer to a request for samples.

    prompt_logprobs: [L] float32, NaN where there is none. num_likeliest, num_likeliest_of_prompt: of each token.
    """
    message = CLASSES["SampleResponse"](prompt_cache_hit_tokens=cached_tokens)
    for one in sequences:
        found = message.sequences.add(
            stop_reason=STOP_REASONS[one.stop_reason],
            tokens=one.tokens.astype("<i4").tobytes(),
            logprobs=one.logprobs.astype("<f4").tobytes(),
        )
        if num_likeliest:
            _write_likeliest(found.topk_sampled_logprobs, one.likeliest, num_likeliest)
    if prompt_logprobs is not None:
        message.prompt_logprobs = prompt_logprobs.astype("<f4").tobytes()
    if num_likeliest_of_prompt:
        _write_likeliest(message.topk_prompt_logprobs, likeliest_of_prompt, num_likeliest_of_prompt)
    encoded: bytes = message.SerializeToString()
    return encoded


def _write_likeliest(message: Any, likeliest: Sequence[Mapping[int, float]], k: int) -> None:
    """Write two matrices [L,k]; what a position does not have is token 0 with NaN."""
    ids, logprobs = np.zeros((len(likeliest), k), "<i4"), np.full((len(likeliest), k), np.nan, "<f4")
    for row, one in enumerate(likeliest):
        ranked = sorted(one.items(), key=lambda item: -item[1])[:k]
        for column, (token, logprob) in enumerate(ranked):
            ids[row, column], logprobs[row, column] = token, logprob
    message.token_ids, message.logprobs = ids.tobytes(), logprobs.tobytes()
    message.k, message.length = k, len(likeliest)
