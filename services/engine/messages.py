"""What an engine may answer: the size of a frame and the form of what is in it.

An engine is a process that may have joined the run, or run on a machine with broken memory. What it says goes into
trajectories, so nothing of it is believed that cannot be: an answer that breaks one of the rules here is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from asyncrl.data.codec import LOGPROB_TOLERANCE
from asyncrl.data.token_extras import table as token_extras
from asyncrl.errors import InfrastructureError
from asyncrl.http_checks import check_msgpack

if TYPE_CHECKING:
    from asyncrl.generation import GenerateRequest

MAX_FRAME_BYTES = 256 * 2**20
"""The most bytes of one answer, whatever was asked for."""
LEAST_FRAME_BYTES = 2**20
BYTES_PER_TOKEN = 64
"""The bytes of a token of an answer: id and log-probability, with room to spare."""
MAX_CONTROL_BYTES = 256 * 2**20
"""The most bytes of the answer to a control call."""
MAX_ERROR_BYTES = 64 * 2**10
MAX_TOKEN_ID = 2**24
"""No vocabulary is larger."""
MAX_VERSION = 2**31 - 1
ABORTED = "abort"
"""Ends a request that was given up (vLLM's name)."""
FINISH_REASONS = ("stop", "length", ABORTED)


class GarbageError(InfrastructureError):
    """An engine answered with what cannot be an answer. It is not to be used for a while."""


def lists_tokens(requests: Iterable[GenerateRequest]) -> bool:
    """Return whether answers to these requests list likely tokens of each position."""
    return any(request.decoding is not None and request.decoding.top_logprobs for request in requests)


def frame_limit(requests: Iterable[GenerateRequest]) -> int:
    """Return how many bytes the largest answer to one of these requests may have."""
    limit = LEAST_FRAME_BYTES
    for request in requests:
        if token_extras.large_answers(request.extras):
            return MAX_FRAME_BYTES
        listed = (request.decoding.top_logprobs or 0) if request.decoding is not None else 0
        tokens = len(request.token_ids) + request.max_tokens
        limit = max(limit, LEAST_FRAME_BYTES + tokens * BYTES_PER_TOKEN * (1 + listed))
    return min(limit, MAX_FRAME_BYTES)


def unpacked(body: bytes, many: bool = False) -> dict[str, Any]:
    """Return the map that a frame or an answer holds. Raises `GarbageError`.

    many: whether it may hold more values than any message of ours, as with likely tokens of each position.
    """
    try:
        if not many:
            check_msgpack(body)
        found = msgpack.unpackb(body)
    except Exception as error:
        raise GarbageError(f"it sent {len(body)} bytes that are no msgpack: {type(error).__name__}") from None
    if type(found) is not dict or not all(type(key) is str for key in found):
        raise GarbageError(f"it sent a {type(found).__name__} in place of a map of names")
    return found


def check_refusal(message: Mapping[str, Any]) -> None:
    """Raise `GarbageError` unless this says why a request was not answered."""
    _need(type(message["error"]) is str, "error must be a text")
    _need(type(message.get("refused")) is bool, "refused must be true or false")


def check_answer(message: Mapping[str, Any], request: GenerateRequest, vocab_size: int = 0) -> None:
    """Raise `GarbageError` unless this can be the answer to a request. vocab_size: of the model, 0 if not known."""
    reason, cached = message.get("finish_reason"), message.get("cached_tokens")
    _need(reason in FINISH_REASONS, f"finish_reason must be one of {FINISH_REASONS}")
    ids, logprobs = _array(message, "token_ids", "<i4"), _array(message, "logprobs", "<f4")
    num, context = len(ids), len(request.token_ids)
    _need(bool(num) or reason == ABORTED, "token_ids must not be empty")
    _need(num <= request.max_tokens, f"token_ids must be at most {request.max_tokens}, got {num}")
    _need(len(logprobs) == num, f"logprobs must be {num} like token_ids, got {len(logprobs)}")
    limit = vocab_size or MAX_TOKEN_ID
    _need(not num or (ids.min() >= 0 and ids.max() < limit), f"token_ids must be from 0 to below {limit}")
    _need(
        not num or bool(np.isfinite(logprobs).all() and logprobs.max() <= LOGPROB_TOLERANCE),
        "logprobs must be finite and at most 0",
    )
    _need(
        type(cached) is int and 0 <= cached <= context + num,
        f"cached_tokens must be from 0 to {context + num}",
    )
    if request.version is None:
        oldest, newest = request.min_version, MAX_VERSION
    else:
        # A past version samples while the engine serves `min_version` or a newer one.
        oldest = newest = request.version
    _check_spans(message.get("spans"), num, oldest, newest)
    _check_reported(message, request, num)


def _check_spans(spans: Any, num: int, oldest: int, newest: int) -> None:
    """Each token has one version, from `oldest` to `newest`."""
    _need(type(spans) is list and len(spans) <= num, "spans must be a list of no more than there are tokens")
    end = 0
    for span in spans:
        _need(
            type(span) is list and [type(part) for part in span] == [int] * 3,
            "spans must be of three numbers",
        )
        version, start, stop = span
        _need(start == end and stop > start, "spans must follow each other")
        _need(oldest <= version <= newest, f"versions must be from {oldest} to {newest}")
        end = stop
    _need(end == num, f"spans must cover {num} tokens, got {end}")


def _check_reported(message: Mapping[str, Any], request: GenerateRequest, num: int) -> None:
    """What was asked for beside the tokens, and nothing else."""
    context, decoding = len(request.token_ids), request.decoding
    listed = decoding.top_logprobs if decoding is not None else None
    of_prompt = context if decoding is not None and decoding.prompt_logprobs else 0
    # A likeliest token beside the sampled one, which is listed, too.
    each = (listed or 0) + 1
    _check_likeliest(message, "top_logprobs", num if listed is not None or of_prompt else 0, each)
    _check_likeliest(message, "prompt_logprobs", of_prompt, each)
    try:
        token_extras.check_reported(message, request.extras, context, num)
    except ValueError as error:
        raise GarbageError(str(error)) from None


def _check_likeliest(message: Mapping[str, Any], name: str, most: int, each: int) -> None:
    """[token ids, log-probabilities] for at most `most` positions, of at most `each` tokens."""
    raw = message.get(name, [])
    _need(type(raw) is list and len(raw) <= most, f"{name} must be for at most {most} positions")
    for item in raw:
        _need(
            type(item) is list and len(item) == 2 and all(type(part) is list for part in item),
            f"{name} must be of token ids and log-probabilities",
        )
        ids, values = item
        _need(len(ids) == len(values) <= each, f"{name} must be at most {each} a position")
        _need(all(type(one) is int and 0 <= one <= MAX_TOKEN_ID for one in ids), f"{name} must name tokens")
        _need(all(type(one) is float and not math.isnan(one) for one in values), f"{name} must be numbers")


def _array(message: Mapping[str, Any], name: str, dtype: str) -> np.ndarray:
    raw = message.get(name)
    if type(raw) is not bytes or len(raw) % 4:
        raise GarbageError(f"{name} must be the bytes of whole items")
    return np.frombuffer(raw, dtype)


def _need(holds: bool, rule: str) -> None:
    if not holds:
        raise GarbageError(rule)


def checked_state(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's state, with numbers in their ranges. Raises `GarbageError`."""
    found = dict(message)
    version = found.get("version")
    _need(type(version) is int and -1 <= version <= MAX_VERSION, "version must be a version")
    for name in ("running", "waiting", "kv_tokens", "max_model_len", "iterations", "computed_tokens"):
        value = found.setdefault(name, 0)
        _need(type(value) is int and 0 <= value < 2**62, f"{name} must be a number from 0")
    usage = found.setdefault("kv_usage", 0.0)
    _need(type(usage) in (int, float) and 0 <= usage <= 1.001, "kv_usage must be from 0 to 1")
    _need(type(found.setdefault("paused", False)) is bool, "paused must be true or false")
    return found
