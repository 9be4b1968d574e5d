"""Requests as the SDK writes them, for tests that do without it."""

from __future__ import annotations

import itertools

import numpy as np

from asyncrl.extensions.tinker.wire import CLASSES, FLOAT32, INT64


def tensor(values, message, shape=None):
    array = np.asarray(values)
    is_float = array.dtype.kind == "f"
    message.dtype = FLOAT32 if is_float else INT64
    message.shape.extend(shape or array.shape)
    message.dense = array.astype("<f4" if is_float else "<i8").tobytes()


def datum(message, tokens, **inputs):
    """Add a row whose arrays are `inputs`."""
    row = message.data.add()
    row.model_input.add().encoded_text.tokens = np.asarray(tokens, "<i4").tobytes()
    for name, values in inputs.items():
        tensor(values, row.loss_fn_inputs.add(key=name).value)


def forward_backward(policy, number, rows, loss="cross_entropy", forward_only=False, **settings):
    """Return a request's bytes. rows: [(tokens, {name: values})]."""
    message = CLASSES["ForwardBackwardRequest"](
        model_id=policy, seq_id=number, loss_fn=loss, forward_only=forward_only
    )
    for tokens, inputs in rows:
        datum(message, tokens, **inputs)
    for key, value in settings.items():
        entry = message.loss_fn_config_v2.add(key=key)
        setattr(entry.value, "text" if isinstance(value, str) else "number", value)
    return message.SerializeToString()


def text_row(tokens):
    """Return a row that predicts each token from those before it."""
    return tokens[:-1], {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}


def read_output(body):
    """Return the log-probabilities of each row, and metrics, of an answer."""
    message = CLASSES["ForwardBackwardOutput"]()
    message.ParseFromString(body)
    rows = []
    for record in message.loss_fn_outputs:
        (field,) = record.fields
        flat, ends = np.frombuffer(field.value.data, "<f4"), np.frombuffer(field.value.offsets, "<i8") // 4
        assert len(ends) == record.num_datums + 1
        trailing = list(field.value.trailing_shape)
        rows += [flat[a:b].reshape([-1, *trailing]) for a, b in itertools.pairwise(ends)]
    return rows, {entry.key: entry.value for entry in message.metrics}
