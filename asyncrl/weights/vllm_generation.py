"""Requests for sequences: how an engine's server reads, samples and answers them.

What a request may ask for besides is read and answered by hooks (`vllm_hooks`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgpack
import numpy as np
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, PoolingRequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from asyncrl.errors import InputError, UnavailableError
from asyncrl.types import Decoding
from asyncrl.weights.vllm_hooks import Asked, Engine
from asyncrl.weights.vllm_served import Served
from asyncrl.weights.vllm_swap import parse_version

if TYPE_CHECKING:
    from vllm.logprobs import Logprob

log = logging.getLogger("asyncrl.weights")

TOKEN_BYTES = 4


async def generate(policy: Served, engine: Engine, body: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer each request as it finishes; when the client disconnects, its running requests are cancelled."""
    for hook in policy.hooks:
        hook.read_body(body)
    requests = {str(r["id"]): r for r in body["requests"]}
    headers = [(b"content-type", b"application/x-msgpack-frames")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    tasks = {asyncio.ensure_future(_answer(policy, engine, *one)) for one in requests.items()}
    gone = asyncio.ensure_future(receive())
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks | {gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                return
            tasks -= done
            frames = b"".join(_frame(task.result()) for task in done)
            await send({"type": "http.response.body", "body": frames, "more_body": True})
    finally:
        gone.cancel()
        for task in tasks:
            task.cancel()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer(policy: Served, engine: Engine, request_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request. An error fails only this request; `refused` says that no engine could serve it."""
    try:
        return {"id": request_id, **await _sample(policy, engine, request_id, request)}
    except (InputError, VLLMClientError, ValueError) as error:
        return {"id": request_id, "refused": True, "error": f"{type(error).__name__}: {error}"}
    except Exception as error:
        if not isinstance(error, UnavailableError):
            log.exception("request %s", request_id)
        reason = f"{type(error).__name__}: {error}"
        return {"id": request_id, "refused": False, "error": reason}


async def _sample(policy: Served, engine: Engine, request_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """Generate one request, by the newest version unless a hook serves another."""
    asked = _parse(request)
    for hook in policy.readers:
        await hook.read(engine, asked)
    await policy.check_version(engine, asked.min_version)
    held = []
    try:
        for hook in policy.holders:
            hook.hold(asked)
            held.append(hook)
        return await _run(policy, engine, policy.own(request_id), asked)
    finally:
        for hook in held:
            hook.release(asked)


def _parse(request: dict[str, Any]) -> Asked:
    """Read one request. Raises `InputError`."""
    try:
        token_ids = np.frombuffer(request["token_ids"], dtype="<i4").tolist()
        if not token_ids:
            raise InputError("token_ids: must not be empty")
        sampling = _sampling(
            int(request["max_tokens"]),
            float(request.get("temperature", 1.0)),
            float(request.get("top_p", 1.0)),
            int(request.get("top_k", 0)),
            request.get("seed"),
            tuple(request.get("stop_token_ids", ())),
            Decoding(**request["decoding"]) if "decoding" in request else None,
        )
        min_version, order = int(request.get("min_version", 0)), int(request.get("order", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"request: {type(error).__name__}: {error}") from error
    # Tokens need no rendering, so vLLM accepts them without a thread switch.
    return Asked(request, tokens_input(token_ids), sampling, min_version, order)


@functools.lru_cache(maxsize=1024)
def _sampling(
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int | None,
    stop_token_ids: tuple[int, ...],
    decoding: Decoding | None,
) -> SamplingParams:
    """Return the parameters, checked. Raises `ValueError`.

    vLLM works on a shallow copy, since a deep one costs a multiple. The only thing that copies share and vLLM adds to,
    the set of tokens that stop, gets the same tokens from each.
    """
    plain = {"top_p": top_p, "top_k": top_k, "logprobs": 0, "flat_logprobs": True}
    return SamplingParams(
        skip_clone=True,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop_token_ids=list(stop_token_ids),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        **(plain if decoding is None else _decoded_as(decoding)),
    )


def _decoded_as(decoding: Decoding) -> dict[str, Any]:
    """Return the further parameters of a request that nothing is trained on."""
    return {
        "top_p": decoding.top_p,
        "top_k": decoding.top_k,
        "min_p": decoding.min_p,
        "presence_penalty": decoding.presence_penalty,
        "frequency_penalty": decoding.frequency_penalty,
        "repetition_penalty": decoding.repetition_penalty,
        "structured_outputs": StructuredOutputsParams(json=decoding.schema) if decoding.schema else None,
        "logprobs": decoding.top_logprobs or 0,
        "prompt_logprobs": (decoding.top_logprobs or 0) if decoding.prompt_logprobs else None,
    }


async def _run(policy: Served, engine: Engine, request_id: str, asked: Asked) -> dict[str, Any]:
    """Generate one request. Raises the engine's errors."""
    final, sampling = None, asked.sampling
    async for output in engine.generate(
        asked.prompt, sampling, request_id, priority=asked.order, **asked.arguments
    ):
        final = output
    if final is None or not final.finished:
        raise UnavailableError("the engine ended the request without an output")
    if isinstance(final, PoolingRequestOutput):
        # What vLLM makes of an aborted request whose tokens are not turned into text.
        raise UnavailableError("the request was aborted")
    out = final.outputs[0]
    answer: dict[str, Any] = {
        "token_ids": np.asarray(out.token_ids, dtype="<i4").tobytes(),
        "logprobs": _sampled_logprobs(out).tobytes(),
        "spans": [[parse_version(s.version), s.start, s.end] for s in out.weight_versions or ()],
        "finish_reason": out.finish_reason,
        "cached_tokens": final.num_cached_tokens or 0,
    }
    if sampling.logprobs or sampling.prompt_logprobs is not None:
        answer["top_logprobs"] = _likeliest(out.logprobs or ())
        answer["prompt_logprobs"] = _likeliest(final.prompt_logprobs or ())
    for hook in policy.reporters:
        await hook.report(engine, asked, final, answer)
    return answer


def _sampled_logprobs(out: CompletionOutput) -> np.ndarray:
    """Return the log-probability of each sampled token. [N] float32."""
    if isinstance(out.logprobs, FlatLogprobs) and len(out.logprobs.logprobs) == len(out.token_ids):
        # Without further likely tokens these are all.
        return np.asarray(out.logprobs.logprobs, dtype="<f4")
    # Only a prompt's first token has None for its log-probabilities.
    steps = cast("Sequence[dict[int, Logprob]]", out.logprobs or [])
    return np.fromiter(
        (step[token].logprob for step, token in zip(steps, out.token_ids, strict=True)), dtype="<f4"
    )


def _likeliest(steps: Iterable[Any]) -> list[list[list[Any]]]:
    """Return [token ids, log-probabilities] per position, likeliest first; a first token of a context has none."""
    ranked = [sorted((step or {}).items(), key=lambda item: -item[1].logprob) for step in steps]
    return [[[token for token, _ in one], [found.logprob for _, found in one]] for one in ranked]


def _frame(message: dict[str, Any]) -> bytes:
    payload = msgpack.packb(message)
    return struct.pack("<I", len(payload)) + payload
