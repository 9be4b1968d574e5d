"""Routes added to the vLLM server by an ASGI middleware (`--middleware asyncrl.weights.vllm_routes.Routes`).

The middleware also guards vLLM's own routes. Those that sample and `/metrics` are open to callers that sample, a few
that the trainer needs to the trainer and the run's own token, `/health` to all, and the rest to nobody: vLLM's
development server has routes that call any method of its workers.

They exist because the request path is the bottleneck of short agent turns: one HTTP request carries many generation
requests, bodies are msgpack with raw arrays, and each answer streams back as it finishes.

`POST /asyncrl/v1/generate`        {requests: [...]} -> frames, one per finished request
`POST /asyncrl/v1/abort`           {ids: [...]}
`POST /asyncrl/v1/weights/epoch`   {} -> that of the weights that are loaded
`POST /asyncrl/v1/weights/base`    a `WeightFile` -> the checksum of the weights that are loaded
`POST /asyncrl/v1/weights/adopt`   a `WeightFile` -> shared with another engine of the machine, if that has it
`POST /asyncrl/v1/weights/expect`  a `WeightFile` -> room is made for it; its path, and which weights are loaded
`POST /asyncrl/v1/weights/prepare` a `WeightFile` -> verified, nothing changed yet
`POST /asyncrl/v1/weights/commit`  a `WeightFile` -> pause, load, set the version, resume; with `finish_requests`
                                   running requests end under the old weights first
`GET  /asyncrl/v1/alive`           {core_silent_s} at once, see `vllm_alive`
`GET  /asyncrl/v1/state`           {version, paused, running, waiting, kv_usage, iterations, computed_tokens, kv_tokens,
                                   max_model_len}

Hooks add routes of their own, and fields to requests, answers and the state (`vllm_configured` names them).
`vllm_addresses` says where the routes are on the server. A frame is a 4-byte little-endian
length and a msgpack map.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import msgpack
from prometheus_client import REGISTRY
from vllm.envs import enable_envs_cache

from asyncrl.credentials import own_credentials
from asyncrl.errors import AsyncRLError, InputError, UnavailableError
from asyncrl.http_checks import BodyCheck, Hosts, Refusal, check_msgpack, refuse_headers
from asyncrl.weights.vllm_addresses import PREFIX, address_of
from asyncrl.weights.vllm_alive import CoreWatch
from asyncrl.weights.vllm_configured import served_from_environment
from asyncrl.weights.vllm_generation import generate
from asyncrl.weights.vllm_guard import CALLERS, SAMPLING
from asyncrl.weights.vllm_hooks import Engine
from asyncrl.weights.vllm_served import Served

if TYPE_CHECKING:
    from asyncrl.weights.vllm_addresses import Address

ENGINE_HOSTS = "ASYNCRL_ENGINE_HOSTS"
"""Environment variable: where the server listens, and the host that others are told."""
LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024 * 1024
OPEN_PATH = "/health"
"""Answered without a token."""
TRUSTED = frozenset({"run", "trainer"})
_SAMPLING = frozenset({"generate", "abort", "state"})
"""What callers that sample may call of ours, beside vLLM's `SAMPLING`; the trainer and the run may call all of ours."""
_TRAINERS = frozenset({"/reset_prefix_cache"})
"""What trainer and run may call of vLLM's own routes besides; hooks add to it."""
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:iteration_tokens_total_count": "iterations",
    "vllm:iteration_tokens_total_sum": "computed_tokens",
}
"""vLLM's own gauges, and their names in the state."""


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
        found = address_of(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        try:
            if (raw := self.served.raw(found)) is not None:
                hook, wanted = raw
                await hook.answer_raw(wanted, scope, receive, send)
                return
            policy = self.served.policy(found)
            await self._route(found.name, policy, scope["app"].state.engine_client, receive, send)
        except UnavailableError as error:
            await _reply(send, 503, {"error": str(error)})
        except (AsyncRLError, ValueError, KeyError, TypeError) as error:
            await _reply(send, 400, {"error": f"{type(error).__name__}: {error}"})

    def _remember_end(self, engine: Engine) -> None:
        """Look up the token that ends a text once, not for each request: a tokenizer looks for it in many places."""
        if not self._end_remembered:
            end, self._end_remembered = engine.renderer.get_eos_token_id(), True
            engine.renderer.get_eos_token_id = lambda: end  # type: ignore[method-assign]

    async def _route(self, name: str, policy: Served, engine: Engine, receive: Any, send: Any) -> None:
        if name == "generate":
            self._remember_end(engine)
            body = await _read_body(receive)
            await policy.catch_up(engine)
            await generate(policy, engine, body, receive, send)
        elif name == "state":
            await _reply(send, 200, await _state(policy, engine))
        elif name == "alive":
            await _reply(send, 200, self.core.look(engine))
        elif name == "abort":
            ids = (await _read_body(receive))["ids"]
            await engine.abort([policy.own(str(i)) for i in ids])
            await _reply(send, 200, {})
        elif name in policy.routes:
            await _reply(send, 200, await policy.routes[name](engine, await _read_body(receive)))
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
        route = address_of(path)
        if route is not None and self.served.is_raw(route) and self.weights_access.caller(given):
            return None
        caller = self.access.caller(given)
        if caller is None:
            return Refusal(401, "missing or wrong bearer token")
        trusted, samples = caller.role in TRUSTED, caller.role in CALLERS
        may_call = (trusted and self._trainers(path, route)) or (samples and _samplers(path, route))
        if may_call and scope["type"] == "http":
            return None
        return Refusal(403, f"{path[:64]}: not for {caller}")

    def _trainers(self, path: str, route: Address | None) -> bool:
        """Whether trainer and run may call a path that callers which sample may not."""
        return route is not None or path in _TRAINERS | self.served.vllm_paths


def _samplers(path: str, route: Address | None) -> bool:
    return route.name in _SAMPLING if route is not None else SAMPLING.fullmatch(path) is not None


async def _state(policy: Served, engine: Engine) -> dict[str, Any]:
    version = await policy.newest(engine)
    length = engine.vllm_config.model_config.max_model_len
    state = {"version": version, "paused": await engine.is_paused(), "max_model_len": int(length)}
    for hook in policy.hooks:
        state |= hook.state(engine)
    return state | _pressure(engine)


def _pressure(engine: Engine) -> dict[str, Any]:
    """Return how busy the engine is: requests, share of the KV cache in use (0 to 1), size of that cache in
    tokens."""
    totals: dict[str, float] = {}
    for metric in REGISTRY.restricted_registry(list(_GAUGES)).collect():
        for sample in metric.samples:
            name = _GAUGES[sample.name]
            totals[name] = totals.get(name, 0.0) + sample.value
    cache = engine.vllm_config.cache_config
    return {
        "running": int(totals.get("running", 0)),
        "waiting": int(totals.get("waiting", 0)),
        "kv_usage": totals.get("kv_usage", 0.0),
        "iterations": int(totals.get("iterations", 0)),
        "computed_tokens": int(totals.get("computed_tokens", 0)),
        "kv_tokens": int((cache.num_gpu_blocks or 0) * (cache.block_size or 0)),
    }


async def _refuse(scope: dict[str, Any], receive: Any, send: Any, refusal: Refusal) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    elif address_of(scope["path"]):
        await _reply(send, refusal.status, {"error": refusal.message})
    else:
        body = json.dumps({"error": {"message": refusal.message, "code": refusal.status}}).encode()
        await _send_whole(send, refusal.status, b"application/json", body)


async def _read_body(receive: Any) -> dict[str, Any]:
    chunks, check, more = [], BodyCheck(MAX_BODY_BYTES, json=False), True
    while more:
        message = await check.received(receive)
        if message is None:
            raise InputError(check.late().message)
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


async def _reply(send: Any, status: int, message: dict[str, Any]) -> None:
    await _send_whole(send, status, b"application/msgpack", msgpack.packb(message))


async def _send_whole(send: Any, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
