"""Handing the KV cache of prompts from engine to engine, inside vLLM's engine core.

An engine of either side has vLLM's NIXL connector. This makes it take tickets alone (`kv_ticket`), never what a client
says of hosts and ports, and keeps the KV cache of one version of the weights apart from that of others:

- A ticket is to one version. The engine that decodes drops it where its own version differs, when it arrives and
  again when its request is scheduled, and computes the prompt itself.
- Where weights change during a pull, vLLM's reset of the prefix cache would raise, since the pull's blocks are in use.
  Here blocks become unfindable instead, running requests are preempted as that reset does it, and a pull counts as
  failed: when it ends, its request is computed anew, under the new weights.
- An engine that prefills holds blocks until they are pulled. A pause does not wait for that: the ticket to them says
  which weights computed them, and the pull goes on.
- vLLM refuses to pull from an engine whose model has another path. On each machine of a run the model is in a folder of
  its own, so what is compared is its configuration.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from asyncrl.credentials import own_credentials
from asyncrl.weights.chunks import file_checksum
from asyncrl.weights.kv_ticket import seal, unseal
from asyncrl.weights.vllm_prefixes import make_unfindable

HANDOVER = "ASYNCRL_HANDOVER"
"""Environment variable: "prefill" or "decode" for an engine that hands over the KV cache of prompts."""
RENEW = "asyncrl_renew_cache"
"""The method that the plugin adds to vLLM's engine core: new weights are loaded, and nothing old may be read."""
TICKET = "asyncrl_ticket"
VERSION = "asyncrl_version"


def hands_over() -> bool:
    """Return whether this engine is one of those that prefill or that decode."""
    return bool(os.environ.get(HANDOVER))


def prefills() -> bool:
    """Return whether this engine is one of those that prefill."""
    return os.environ.get(HANDOVER) == "prefill"


def key() -> str:
    """Return the key that seals tickets."""
    return own_credentials().keys["engine"]


def parameters(prefill: bool, ticket: bytes) -> dict[str, Any] | None:
    """Return the `extra_args` of a request's sampling; None for a request that takes no part."""
    if not hands_over() or not (prefill or ticket):
        return None
    return {"kv_transfer_params": {"do_remote_decode": True} if prefill else {TICKET: ticket}}


def sealed(params: dict[str, Any] | None, version: int) -> bytes:
    """Return the ticket to what this engine has computed and holds, b"" without anything."""
    if not params or not params.get("remote_block_ids"):
        return b""
    # As plain lists and numbers: vLLM gives tuples.
    return seal(params, version, time.time(), key())


def accept(params: dict[str, Any] | None, version: int, key: str, now: float) -> dict[str, Any] | None:
    """Return what the connector may see of a request's `kv_transfer_params`."""
    if not params:
        return None
    if isinstance(ticket := params.get(TICKET), bytes):
        found = unseal(ticket, version, now, key)
        return None if found is None else found | {VERSION: version}
    return {"do_remote_decode": True} if params.get("do_remote_decode") is True else None


def renew_cache(core: Any, version: int) -> None:
    """Forget what old weights have computed. Called while generation is paused, before new weights are loaded."""
    from vllm.v1.request import RequestStatus

    scheduler = core.scheduler
    set_version(scheduler, version)
    # From here to the next comment as `Scheduler.reset_prefix_cache` does it.
    now = time.monotonic()
    while scheduler.running:
        scheduler._preempt_request(scheduler.running.pop(), now, drop_stale_output=True)
    scheduler.prev_step_scheduled_req_ids.clear()
    make_unfindable(scheduler.kv_cache_manager.block_pool)
    for request in scheduler.requests.values():
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            # As of a pull that failed from its first block on: what comes is not used.
            request.num_computed_tokens = 0
            scheduler.failed_recving_kv_req_ids.add(request.request_id)
    core.reset_mm_cache()
    core.reset_encoder_cache()


def set_version(scheduler: Any, version: int) -> None:
    """Tell the connector which version the engine serves from now on."""
    setattr(scheduler.connector.connector_scheduler, VERSION, version)


def model_identity(model: str) -> str:
    """Return what is the same for a model wherever it is: the checksum of its configuration, or the name it is loaded
    by."""
    file = Path(model) / "config.json"
    return file_checksum(file) if file.is_file() else model


def add_to_engine_core(base_version: int) -> None:
    """Make vLLM's engine core and connector do what is said above."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    setattr(EngineCore, RENEW, renew_cache)
    arrived, matched = (
        NixlPullConnectorScheduler.on_new_request,
        NixlPullConnectorScheduler.get_num_new_matched_tokens,
    )
    finished, sealing = Scheduler.has_finished_requests, key()
    compatibility = base_worker.compute_nixl_compatibility_hash

    def on_new_request(self: Any, request: Any) -> None:
        version = getattr(self, VERSION, base_version)
        request.kv_transfer_params = accept(request.kv_transfer_params, version, sealing, time.time())
        arrived(self, request)

    def get_num_new_matched_tokens(self: Any, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        params = request.kv_transfer_params
        pulls = params and VERSION in params and params.get("do_remote_prefill")
        if pulls and params[VERSION] != getattr(self, VERSION, base_version):
            # The engine that prefilled frees its blocks by itself when nobody asks for them any more.
            self._stop_heartbeat(request.request_id)
            params["do_remote_prefill"] = False
        return matched(self, request, num_computed_tokens)

    def has_finished_requests(self: Any) -> bool:
        if self.pause_state != PauseState.UNPAUSED:
            return bool(self.finished_req_ids)
        return finished(self)

    def compatibility_by_content(vllm_config: Any, *more: Any, **named: Any) -> str:
        model = vllm_config.model_config
        path, model.model = model.model, model_identity(model.model)
        try:
            return compatibility(vllm_config, *more, **named)
        finally:
            model.model = path

    setattr(base_worker, "compute_nixl_compatibility_hash", compatibility_by_content)  # noqa: B010
    setattr(NixlPullConnectorScheduler, "on_new_request", on_new_request)  # noqa: B010 - mypy forbids to assign it
    setattr(NixlPullConnectorScheduler, "get_num_new_matched_tokens", get_num_new_matched_tokens)  # noqa: B010
    setattr(Scheduler, "has_finished_requests", has_finished_requests)  # noqa: B010
