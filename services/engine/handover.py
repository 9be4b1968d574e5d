"""Engines that prefill for others: what vLLM is told, so that KV caches of prompts go from engine to engine by NIXL."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
from collections.abc import Mapping

from asyncrl.errors import ConfigError

LEASE_S = 30
"""For so long an engine keeps what it computed, unless the one that decodes says that it still waits."""
CONNECTOR = {
    "kv_connector": "NixlConnector",
    # A pull that fails, as from an engine that has died, is made up for by computing the prompt.
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
}


def check_handover(prefill: int) -> None:
    """Raise `ConfigError` where engines are to prefill for others and NIXL is missing. Imports nothing."""
    if prefill and importlib.util.find_spec("nixl") is None:
        raise ConfigError(
            f"engine.prefill: nixl is missing: pip install 'asyncrl[nixl]', or set it to 0; got {prefill}"
        )


def handover_arguments(side: str) -> list[str]:
    """Return vLLM's arguments. side: "prefill" or "decode"; "" for an engine that takes no part."""
    if not side:
        return []
    role = "kv_producer" if side == "prefill" else "kv_consumer"
    return ["--kv-transfer-config", json.dumps(CONNECTOR | {"kv_role": role})]


def handover_variables(side: str, host: str, port: int) -> Mapping[str, str]:
    """Return environment variables of the vLLM server. host, port: where other engines ask for its NIXL agent."""
    if not side:
        return {}
    found = {
        "ASYNCRL_HANDOVER": side,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
    }
    if _is_loopback(host):
        # Whoever reaches an agent may read and write its memory.
        found["UCX_NET_DEVICES"] = "lo"
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
