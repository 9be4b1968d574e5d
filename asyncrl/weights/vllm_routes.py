"""Routes added to the vLLM server by an ASGI middleware (`--middleware asyncrl.weights.vllm_routes.Routes`).

The middleware also guards vLLM's own routes. Those that sample and `/metrics` are open to callers that sample, a few
that the trainer needs to the trainer and the run's own token, `/health` to all, and the rest to nobody: vLLM's
development server has routes that call any method of its workers.

They exist because the request path is the bottleneck of short agent turns: one HTTP request carries many generation
requests, bodies are msgpack with raw arrays, and each answer streams back as it finishes.

`POST /asyncrl/v1/generate`        {requests: [...]} -> frames, one per finished request; with adapters a request
                                   may name the `version` to be served by. `images` of the body has the files of
                                   the images that requests name with their places.
`POST /asyncrl/v1/abort`           {ids: [...]}
`POST /asyncrl/v1/weights/epoch`   {} -> that of the weights that are loaded
`POST /asyncrl/v1/weights/expect`  a `WeightFile` -> room is made for it; its path, the workers' devices and group,
                                   and which weights are loaded
`POST /asyncrl/v1/weights/join`    a `GroupPlace` -> the workers are in that group
`POST /asyncrl/v1/weights/receive` a `WeightFile`, `limit_s`, `send_delta` -> the file or its delta is received
`POST /asyncrl/v1/weights/base`    a `WeightFile` -> the checksum of the weights that are loaded
`POST /asyncrl/v1/weights/fetch`   a `WeightFile`, `order` (a `FetchOrder`) -> it is fetched over HTTP in the background
`POST /asyncrl/v1/weights/fetched` a `WeightFile` -> how much of it has come, whether that has ended, and any error
`POST /asyncrl/v1/weights/read`    a `WeightFile`, `order` (a `ReadOrder`) -> it is read by NIXL, or why it was not
`GET  /asyncrl/v1/weights/bytes/EPOCH/VERSION/KIND` one range of a weight file, for other engines
`POST /asyncrl/v1/weights/prepare` a `WeightFile` -> verified, nothing changed yet
`POST /asyncrl/v1/weights/commit`  a `WeightFile` -> pause, load, set the version, resume; with `finish_requests`
                                   running requests end under the old weights first, with `keep_kv` they keep
                                   their KV; an adapter is loaded beside those in use
`POST /asyncrl/v1/weights/interrupt` {limit_s} -> generation is paused until the next commit, for `limit_s` at most; the
                                   version and the sequences in which it has sampled tokens
`GET  /asyncrl/v1/alive`           {core_silent_s} at once, see `vllm_alive`
`GET  /asyncrl/v1/state`           {version, paused, running, waiting, kv_usage, iterations, computed_tokens, kv_tokens,
                                   max_model_len}, and of an engine that speculates
                                   {proposed_tokens, accepted_tokens}

All of them exist again under `/policies/NAME` for every further policy whose adapters the engine serves.

A frame is a 4-byte little-endian length and a msgpack map.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import logging
import os
import re
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgpack
import numpy as np
from prometheus_client import REGISTRY
from vllm import SamplingParams
from vllm.envs import enable_envs_cache
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import MultiModalInput, TokensInput, tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, PoolingRequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from asyncrl.credentials import own_credentials
from asyncrl.errors import AsyncRLError, InputError, UnavailableError
from asyncrl.http_checks import BodyCheck, Hosts, Refusal, check_msgpack, refuse_headers
from asyncrl.types import Decoding
from asyncrl.weights.collective import GroupPlace
from asyncrl.weights.fetches import fetch_order_from_json
from asyncrl.weights.offered import send_range
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.reads import read_order_from_json
from asyncrl.weights.vllm_alive import CoreWatch
from asyncrl.weights.vllm_commitments import COMMIT, commitments_of
from asyncrl.weights.vllm_guard import SAMPLING
from asyncrl.weights.vllm_images import check_files, image_prompt, read_placed
from asyncrl.weights.vllm_plugin import RECORD_STATES
from asyncrl.weights.vllm_served import Served, parse_version, served_from_environment

if TYPE_CHECKING:
    from vllm.logprobs import Logprob
    from vllm.v1.engine import PauseMode
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger("asyncrl.weights")

PREFIX = "/asyncrl/v1/"
ENGINE_HOSTS = "ASYNCRL_ENGINE_HOSTS"
"""Environment variable: where the server listens, and the host that others are told."""
LOOPBACK = "127.0.0.1"
_ROUTE = re.compile(rf"(?:/policies/(?P<policy>[^/]+))?{PREFIX}(?P<name>.*)")
_BYTES = re.compile(r"weights/bytes/(\d+)/(\d+)/(whole|delta)")
MAX_BODY_BYTES = 64 * 1024 * 1024
TOKEN_BYTES = 4
OPEN_PATH = "/health"
"""Answered without a token."""
TRUSTED = frozenset({"run", "trainer"})
SAMPLERS = frozenset({"worker", "gateway"})
_SAMPLING = re.compile(rf"(?:/policies/[^/]+)?{PREFIX}(?:generate|abort|state)")
"""What callers that sample may call of ours, beside vLLM's `SAMPLING`; the trainer and the run may call all of ours."""
_TRAINERS = re.compile(r"/(?:sleep|wake_up|is_sleeping|reset_prefix_cache)")
"""What trainer and run may call of vLLM's own routes besides."""
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:iteration_tokens_total_count": "iterations",
    "vllm:iteration_tokens_total_sum": "computed_tokens",
}
"""vLLM's own gauges, and their names in the state."""
_SPECULATED = {
    "vllm:spec_decode_num_draft_tokens": "proposed_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
}
"""Counters of an engine that speculates."""


class Routes:
    """Pure ASGI middleware: answers paths under `/asyncrl/v1/` and passes other permitted requests on."""

    def __init__(self, app: Any) -> None:
        self.app = app
        credentials = own_credentials()
        self.access, self.weights_access = credentials.access("engine"), credentials.access("weights")
        self.hosts = Hosts(*os.environ.get(ENGINE_HOSTS, LOOPBACK).split(","))
        self.served = served_from_environment()
        self.core = CoreWatch()
        self._end_remembered = False
        # As in the engine's core: every request reads some of them.
        enable_envs_cache()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if (refusal := self._refusal(scope)) is not None:
            await _refuse(scope, receive, send, refusal)
            return
        found = _ROUTE.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        try:
            policy = self.served.get(found["policy"] or "")
            if policy is None:
                raise InputError(f"policy {found['policy']!r}: this engine serves {sorted(self.served)}")
            if wanted := _BYTES.fullmatch(found["name"]):
                find = functools.partial(policy.offered, int(wanted[1]), int(wanted[2]), wanted[3])
                await send_range(find, scope, receive, send)
                return
            await self._route(found["name"], policy, scope["app"].state.engine_client, receive, send)
        except UnavailableError as error:
            await _reply(send, 503, {"error": str(error)})
        except (AsyncRLError, ValueError, KeyError, TypeError) as error:
            await _reply(send, 400, {"error": f"{type(error).__name__}: {error}"})

    def _remember_end(self, engine: AsyncLLM) -> None:
        """Look up the token that ends a text once, not for each request: a tokenizer looks for it in many places."""
        if not self._end_remembered:
            end, self._end_remembered = engine.renderer.get_eos_token_id(), True
            engine.renderer.get_eos_token_id = lambda: end  # type: ignore[method-assign]

    async def _route(self, name: str, policy: Served, engine: AsyncLLM, receive: Any, send: Any) -> None:
        if name == "generate":
            self._remember_end(engine)
            body = await _read_body(receive)
            await policy.catch_up(engine)
            await self._generate(policy, engine, body, receive, send)
        elif name == "state":
            await _reply(send, 200, await self._state(policy, engine))
        elif name == "alive":
            await _reply(send, 200, self.core.look(engine))
        elif name == "abort":
            ids = (await _read_body(receive))["ids"]
            await engine.abort([policy.own(str(i)) for i in ids])
            await _reply(send, 200, {})
        elif name.startswith("weights/"):
            await _reply(send, 200, await _weights(name, policy, engine, await _read_body(receive)))
        else:
            await _reply(send, 404, {"error": f"no route {PREFIX}{name}"})

    def _refusal(self, scope: dict[str, Any]) -> Refusal | None:
        """Return why a request is refused, None if it is not."""
        if (refusal := refuse_headers(scope["headers"], self.hosts)) is not None:
            return refusal
        path = scope["path"]
        if path == OPEN_PATH:
            return None
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        route = _ROUTE.fullmatch(path)
        if route is not None and _BYTES.fullmatch(route["name"]) and self.weights_access.caller(given):
            return None
        caller = self.access.caller(given)
        if caller is None:
            return Refusal(401, "missing or wrong bearer token")
        trusted, samples = caller.role in TRUSTED, caller.role in TRUSTED | SAMPLERS
        if route is not None:
            may_call = trusted or (samples and _SAMPLING.fullmatch(path))
        else:
            may_call = (trusted and _TRAINERS.fullmatch(path)) or (samples and SAMPLING.fullmatch(path))
        if may_call and scope["type"] == "http":
            return None
        return Refusal(403, f"{path[:64]}: not for {caller}")

    async def _state(self, policy: Served, engine: AsyncLLM) -> dict[str, Any]:
        version = await policy.newest(engine)
        length = engine.vllm_config.model_config.max_model_len
        state = {"version": version, "paused": await engine.is_paused(), "max_model_len": int(length)}
        return state | _pressure(engine)

    async def _generate(
        self, policy: Served, engine: AsyncLLM, body: dict[str, Any], receive: Any, send: Any
    ) -> None:
        """Answer each request as it finishes; when the client disconnects, its running requests are cancelled."""
        files = check_files(body.get("images", {}))
        requests = {str(r["id"]): r for r in body["requests"]}
        for request in requests.values():
            if "images" in request:
                request["images"] = read_placed(request["images"], files)
        headers = [(b"content-type", b"application/x-msgpack-frames")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        tasks = {asyncio.ensure_future(self._answer(policy, engine, *one)) for one in requests.items()}
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

    async def _answer(
        self, policy: Served, engine: AsyncLLM, request_id: str, request: dict[str, Any]
    ) -> dict[str, Any]:
        """Answer one request. An error fails only this request; `refused` says that no engine could serve it."""
        try:
            return {"id": request_id, **await _sample(policy, engine, request_id, request)}
        except (InputError, VLLMClientError, ValueError) as error:
            return {"id": request_id, "refused": True, "error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            if not isinstance(error, UnavailableError):
                log.exception("request %s", request_id)
            said = f"{type(error).__name__}: {error}"
            return {"id": request_id, "refused": False, "error": said}


async def _sample(
    policy: Served, engine: AsyncLLM, request_id: str, request: dict[str, Any]
) -> dict[str, Any]:
    """Generate one request; with adapters by the version it names, or else by the newest."""
    parsed = _parse(request)
    if images := request.get("images"):
        prompt = await asyncio.to_thread(
            image_prompt, engine.vllm_config.model_config.model, parsed.prompt["prompt_token_ids"], images
        )
        parsed = replace(parsed, prompt=prompt)
    if engine.vllm_config.speculative_config is not None:
        _check_speculated(parsed.sampling)
    await policy.check_version(engine, parsed.min_version)
    own = policy.own(request_id)
    if policy.adapters is None:
        return await _run(engine, own, parsed)
    with policy.adapters.serve(request.get("version")) as (version, adapter):
        answer = await _run(engine, own, parsed, adapter)
    return answer | {"spans": [[version, 0, len(answer["token_ids"]) // TOKEN_BYTES]]}


async def _weights(name: str, policy: Served, engine: AsyncLLM, body: dict[str, Any]) -> dict[str, Any]:
    """Do what the trainer asks about weights. Raises `InputError`, `ConflictError`, KeyError, TypeError, ValueError."""
    if name == "weights/join":
        return await policy.transfers.join(engine, GroupPlace(**body))
    if name == "weights/epoch":
        return {"epoch": policy.position.epoch}
    mode: PauseMode = "wait" if body.get("finish_requests") else "keep"
    if name == "weights/interrupt":
        return await policy.interrupt(engine, mode, float(body["limit_s"]))
    file = weight_file_from_json(body)
    match name:
        case "weights/expect":
            base = policy.position.file
            found = await policy.transfers.expect(engine, file)
            return found | {"base": base.checksum if base is not None else ""}
        case "weights/receive":
            return await policy.transfers.receive(
                engine, file, float(body["limit_s"]), bool(body["send_delta"])
            )
        case "weights/base":
            base = policy.position.file
            return {"base": base.checksum if base is not None else ""}
        case "weights/fetch":
            await policy.fetches.begin(file, fetch_order_from_json(body["order"]))
            return {}
        case "weights/fetched":
            return await policy.fetches.progress(file)
        case "weights/read":
            return await policy.reads.read(file, read_order_from_json(body["order"], file))
        case "weights/prepare":
            return {"verify_s": await policy.prepare(engine, file)}
        case "weights/commit":
            return await policy.commit(engine, file, mode, bool(body.get("keep_kv")))
    raise InputError(f"no route {PREFIX}{name}")


def _pressure(engine: AsyncLLM) -> dict[str, Any]:
    """Return how busy the engine is: requests, share of the KV cache in use (0 to 1), size of that cache in
    tokens."""
    totals: dict[str, float] = {}
    for metric in REGISTRY.restricted_registry(list(_GAUGES)).collect():
        for sample in metric.samples:
            name = _GAUGES[sample.name]
            totals[name] = totals.get(name, 0.0) + sample.value
    cache = engine.vllm_config.cache_config
    speculated = _counted() if engine.vllm_config.speculative_config is not None else {}
    return speculated | {
        "running": int(totals.get("running", 0)),
        "waiting": int(totals.get("waiting", 0)),
        "kv_usage": totals.get("kv_usage", 0.0),
        "iterations": int(totals.get("iterations", 0)),
        "computed_tokens": int(totals.get("computed_tokens", 0)),
        "kv_tokens": int((cache.num_gpu_blocks or 0) * (cache.block_size or 0)),
    }


def _counted() -> dict[str, int]:
    """Return how many tokens were proposed and accepted since the engine started."""
    totals = dict.fromkeys(_SPECULATED.values(), 0)
    for metric in REGISTRY.restricted_registry([f"{name}_total" for name in _SPECULATED]).collect():
        totals[_SPECULATED[metric.name]] += sum(
            int(s.value) for s in metric.samples if s.name.endswith("_total")
        )
    return totals


@dataclass(frozen=True, slots=True)
class _Parsed:
    prompt: TokensInput | MultiModalInput
    sampling: SamplingParams
    min_version: int
    order: int
    """Requests of lower order are scheduled first."""
    report_experts: bool
    """Whether the answer holds the experts of the tokens, of an engine that records them."""
    commit: bool
    """Whether it holds commitments to the hidden states, of an engine that records these."""


def _parse(request: dict[str, Any]) -> _Parsed:
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
            int(request.get("routed_from") or 0),
        )
        min_version, order = int(request.get("min_version", 0)), int(request.get("order", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"request: {type(error).__name__}: {error}") from error
    # Tokens need no rendering, so vLLM accepts them without a thread switch.
    report_experts = request.get("routed_from") is not None
    return _Parsed(
        tokens_input(token_ids), sampling, min_version, order, report_experts, bool(request.get("commit"))
    )


@functools.lru_cache(maxsize=1024)
def _sampling(
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int | None,
    stop_token_ids: tuple[int, ...],
    decoding: Decoding | None,
    routed_from: int,
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
        routed_experts_prompt_start=routed_from,
        **(plain if decoding is None else _decoded_as(decoding)),
    )


def _check_speculated(sampling: SamplingParams) -> None:
    """Raise `InputError` for a request whose log-probabilities an engine that speculates cannot report exactly.

    It reports those before temperature and truncation (`raw_logprobs`); greedy ones are those of temperature 1, with
    and without speculation.
    """
    plain = {
        "temperature": sampling.temperature in (0.0, 1.0),
        "top_p": sampling.top_p == 1.0,
        "top_k": sampling.top_k in (0, -1),
        "min_p": sampling.min_p == 0.0,
        "presence_penalty": sampling.presence_penalty == 0.0,
        "frequency_penalty": sampling.frequency_penalty == 0.0,
        "repetition_penalty": sampling.repetition_penalty == 1.0,
        "schema": sampling.structured_outputs is None,
    }
    if wrong := [name for name, unchanged in plain.items() if not unchanged]:
        raise InputError(
            f"{wrong[0]}: this engine speculates (engine.speculative) and reports log-probabilities before "
            "temperature, truncation and penalties, so it samples at temperature 1 or 0 and without any of them"
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


async def _run(
    engine: AsyncLLM, request_id: str, parsed: _Parsed, adapter: LoRARequest | None = None
) -> dict[str, Any]:
    """Generate one request. Raises the engine's errors."""
    final = None
    key = uuid.uuid4().hex if parsed.commit and RECORD_STATES in os.environ else ""
    sampling = _recorded_as(parsed.sampling, key) if key else parsed.sampling
    async for output in engine.generate(
        parsed.prompt, sampling, request_id, lora_request=adapter, priority=parsed.order
    ):
        final = output
    if final is None or not final.finished:
        raise UnavailableError("the engine ended the request without an output")
    if isinstance(final, PoolingRequestOutput):
        # What vLLM makes of an aborted request whose tokens are not turned into text.
        raise UnavailableError("the request was aborted")
    out = final.outputs[0]
    token_ids = np.asarray(out.token_ids, dtype="<i4")
    logprobs = _sampled_logprobs(out)
    reported: dict[str, Any] = {}
    if key:
        # The ranks of an engine have the same states.
        chunks, *_ = await engine.collective_rpc("commitments_take", args=(key, len(token_ids)))
        reported["commitments"] = commitments_of(chunks)
    if parsed.report_experts:
        reported["routed_experts"] = _recorded(out.routed_experts)
    if parsed.sampling.logprobs or parsed.sampling.prompt_logprobs is not None:
        reported["top_logprobs"] = _likeliest(out.logprobs or ())
        reported["prompt_logprobs"] = _likeliest(final.prompt_logprobs or ())
    spans = [[parse_version(s.version), s.start, s.end] for s in out.weight_versions or ()]
    return {
        **reported,
        "token_ids": token_ids.tobytes(),
        "logprobs": logprobs.tobytes(),
        "spans": spans,
        "finish_reason": out.finish_reason,
        "cached_tokens": final.num_cached_tokens or 0,
    }


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


def _recorded_as(sampling: SamplingParams, key: str) -> SamplingParams:
    """Return parameters that ask for a request's hidden states to be recorded under `key`."""
    asking = copy.copy(sampling)
    asking.extra_args = {**(sampling.extra_args or {}), COMMIT: key}
    return asking


def _recorded(experts: np.ndarray | None) -> dict[str, Any] | None:
    """Return what the engine recorded of the experts that tokens were routed to, None where it does not."""
    if experts is None:
        return None
    narrow = np.ascontiguousarray(experts, experts.dtype.newbyteorder("<"))
    return {"dtype": narrow.dtype.str, "shape": list(narrow.shape), "data": narrow.tobytes()}


def _likeliest(steps: Iterable[Any]) -> list[list[list[Any]]]:
    """Return [token ids, log-probabilities] per position, likeliest first; a first token of a context has none."""
    ranked = [sorted((step or {}).items(), key=lambda item: -item[1].logprob) for step in steps]
    return [[[token for token, _ in one], [found.logprob for _, found in one]] for one in ranked]


async def _refuse(scope: dict[str, Any], receive: Any, send: Any, refusal: Refusal) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    elif _ROUTE.fullmatch(scope["path"]):
        await _reply(send, refusal.status, {"error": refusal.message})
    else:
        body = json.dumps({"error": {"message": refusal.message, "code": refusal.status}}).encode()
        await _send_whole(send, refusal.status, b"application/json", body)


async def _read_body(receive: Any) -> dict[str, Any]:
    chunks, check, more = [], BodyCheck(MAX_BODY_BYTES, json=False), True
    while more:
        try:
            async with asyncio.timeout(check.left_s):
                message = await receive()
        except TimeoutError:
            raise InputError(check.late().message) from None
        if message["type"] == "http.disconnect":
            raise InputError("the client went away before its request was complete")
        chunks.append(message.get("body", b""))
        if (refusal := check.add(chunks[-1])) is not None:
            raise InputError(refusal.message)
        more = message.get("more_body", False)
    try:
        raw = b"".join(chunks)
        check_msgpack(raw)
        body = msgpack.unpackb(raw)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"body: not msgpack ({error})") from error
    if not isinstance(body, dict):
        raise InputError(f"body: must be a map, got {type(body).__name__}")
    return body


def _frame(message: dict[str, Any]) -> bytes:
    payload = msgpack.packb(message)
    return struct.pack("<I", len(payload)) + payload


async def _reply(send: Any, status: int, message: dict[str, Any]) -> None:
    await _send_whole(send, status, b"application/msgpack", msgpack.packb(message))


async def _send_whole(send: Any, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
