"""A ticket to the KV cache that another engine has computed of a prompt: what vLLM's connector must know, sealed.

It names a host and a port to connect to. A client carries it from one engine to the other and can neither write nor
change one: it is sealed with the key by which engines of a run check their callers, and which clients do not have.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from typing import Any

import msgpack

log = logging.getLogger("asyncrl.weights")

MAC_BYTES = 32
FRESH_S = 15.0
"""An engine keeps what it computed for a while only. A ticket that is older when it arrives is not used; by the clocks
of both machines."""


def seal(params: Mapping[str, Any], version: int, now: float, key: str) -> bytes:
    """Return a ticket to what weights of `version` have computed. params: vLLM's `kv_transfer_params`. now: seconds
    of the wall clock."""
    body = msgpack.packb({"params": dict(params), "version": version, "at": now})
    return _mac(body, key) + body


def unseal(ticket: bytes, version: int, now: float, key: str) -> dict[str, Any] | None:
    """Return the parameters for an engine that serves `version`; None for a ticket that is not sealed with `key`, too
    old, or to what other weights have computed."""
    mac, body = ticket[:MAC_BYTES], ticket[MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(body, key)):
        return None
    said = msgpack.unpackb(body, use_list=True)
    if said["version"] != version:
        return None
    if abs(age_s := now - said["at"]) > FRESH_S:
        log.warning("a KV ticket came after %.1f s, too late: its prompt is computed here", age_s)
        return None
    return dict(said["params"])


def _mac(body: bytes, key: str) -> bytes:
    return hmac.new(key.encode(), b"kv-ticket/" + body, hashlib.sha256).digest()
