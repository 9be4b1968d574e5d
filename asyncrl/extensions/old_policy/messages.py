"""What goes over the wire to the old-policy process: sequences to score, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncrl.errors import InputError
from asyncrl.extensions.old_policy.model import Row


def rows_to_map(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the body of a request."""
    return {
        "rows": [
            {
                "token_ids": np.asarray(row.token_ids, "<i4").tobytes(),
                "mask": np.asarray(row.mask, np.uint8).tobytes(),
                "versions": np.asarray(row.versions, "<i4").tobytes(),
            }
            for row in rows
        ]
    }


def rows_from_map(body: Mapping[str, Any]) -> list[Row]:
    """Read the body of a request. Raises `InputError`."""
    try:
        rows = [
            Row(
                np.frombuffer(row["token_ids"], "<i4"),
                np.frombuffer(row["mask"], np.uint8).astype(bool),
                np.frombuffer(row["versions"], "<i4"),
            )
            for row in body["rows"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"rows: {type(error).__name__}: {error}") from error
    for number, row in enumerate(rows):
        if not len(row.token_ids) == len(row.mask) == len(row.versions) or not len(row.token_ids):
            raise InputError(f"rows[{number}]: its arrays must have one length above 0")
    return rows


def logprobs_to_map(logprobs: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the body of an answer."""
    return {"logprobs": [np.asarray(values, "<f4").tobytes() for values in logprobs]}


def logprobs_from_map(body: Mapping[str, Any]) -> list[np.ndarray]:
    """Read the body of an answer."""
    return [np.frombuffer(values, "<f4") for values in body["logprobs"]]
