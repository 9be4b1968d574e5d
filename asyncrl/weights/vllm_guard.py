"""Guards a vLLM server for clients of OpenAI and Anthropic (`--middleware asyncrl.weights.vllm_guard.Guard`).

vLLM's own `--api-key` leaves routes beside `/v1/` open, among them one that samples, and does not know the header in
which Anthropic's clients send their key. Here every route but the health check asks for the token,
and only the listed ones answer.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from asyncrl.credentials import own_credentials
from asyncrl.http_checks import Hosts, Refusal, refuse_headers

HOST_VARIABLE = "ASYNCRL_POLICY_HOST"
"""Environment variable with the address on which the server listens."""
HEALTH = ("/health", "/healthz")
SAMPLING = re.compile(
    r"/v1/(?:models|completions|chat/completions|messages(?:/count_tokens)?|responses(?:/[^/]+(?:/cancel)?)?)|/metrics"
)
"""vLLM's own routes for callers that sample. All that are not listed here or by name elsewhere answer nobody: there are
some that call any method of the workers, write files or load weights, and each release of vLLM may bring more."""
TOKENS = re.compile(r"/(?:tokenize|detokenize|version|ping)")
CALLERS = frozenset({"run", "trainer", "worker", "gateway"})
"""The roles that sample."""


class Guard:
    """Pure ASGI middleware: passes on the requests that carry the token."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.access = own_credentials().access("engine")
        self.hosts = Hosts(os.environ[HOST_VARIABLE])

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (refusal := self._refusal(scope)) is None:
            path = "/health" if scope.get("path") in HEALTH else scope.get("path")
            await self.app(scope | {"path": path}, receive, send)
        elif scope["type"] == "http":
            kind = "authentication_error" if refusal.status == 401 else "invalid_request_error"
            # "error" is read by OpenAI's clients, with "type" beside it by Anthropic's.
            error = {"type": kind, "message": refusal.message, "code": refusal.status}
            body = json.dumps({"type": "error", "error": error}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: dict[str, Any]) -> Refusal | None:
        if (refusal := refuse_headers(scope["headers"], self.hosts)) is not None:
            return refusal
        if scope["path"] in HEALTH:
            return None
        given = dict(scope["headers"])
        authorization = given.get(b"authorization") or b"Bearer " + given.get(b"x-api-key", b"")
        caller = self.access.caller(authorization)
        if caller is None or caller.role not in CALLERS:
            return Refusal(401, "missing or wrong API key: give the token that `asyncrl serve policy` named")
        if scope["type"] != "http" or not (
            SAMPLING.fullmatch(scope["path"]) or TOKENS.fullmatch(scope["path"])
        ):
            return Refusal(404, f"{scope['path'][:64]}: there is no such route here")
        return None
