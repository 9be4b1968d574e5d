"""Keeping what a version has sampled in vLLM's engine process (`sampled`).

The scheduler has the tokens of all requests and sees each of them end. Requests with images are left out: their tokens
alone do not say what the model read.
"""

from __future__ import annotations

import os
from typing import Any

from asyncrl.extensions.old_policy.sampled import SampledSequences, sequences_to_list
from asyncrl.weights.vllm_plugin import STARTED_BY_US

KEEP_SAMPLED = "ASYNCRL_KEEP_SAMPLED"
"""Environment variable of an engine that keeps them."""
SAMPLED = "asyncrl_sampled"
RENEW_SAMPLED = "asyncrl_renew_sampled"
"""The methods that this adds to vLLM's engine core, and that the server calls while generation is paused."""
_KEPT = "asyncrl_sampled_sequences"


def keep_sequences() -> None:
    """Have vLLM's schedulers keep sequences, of the version that the engine starts with at first."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    base_version, free = int(os.environ[STARTED_BY_US]), Scheduler._free_request

    def free_request(self: Any, request: Any, *given: Any, **named: Any) -> Any:
        if _is_text(request):
            _kept(self, base_version).end(
                request.request_id, request.all_token_ids, request.num_prompt_tokens
            )
        return free(self, request, *given, **named)

    def sampled(core: Any) -> list[Any]:
        """Return the version and its sequences."""
        kept = _kept(core.scheduler, base_version)
        # What has ended and waits for its blocks to be freed has been kept.
        going = [r for r in core.scheduler.requests.values() if _is_text(r) and not r.is_finished()]
        found = kept.all((r.request_id, r.all_token_ids, r.num_prompt_tokens) for r in going)
        return [kept.version, sequences_to_list(found)]

    def renew(core: Any, version: int) -> None:
        requests = core.scheduler.requests.values()
        _kept(core.scheduler, base_version).renew(
            version, {r.request_id: len(r.all_token_ids) for r in requests}
        )

    setattr(Scheduler, "_free_request", free_request)  # noqa: B010 - mypy forbids to assign it
    setattr(EngineCore, SAMPLED, sampled)
    setattr(EngineCore, RENEW_SAMPLED, renew)


def _is_text(request: Any) -> bool:
    return request.sampling_params is not None and not request.mm_features


def _kept(scheduler: Any, base_version: int) -> SampledSequences:
    found = getattr(scheduler, _KEPT, None)
    if found is None:
        found = SampledSequences(base_version)
        setattr(scheduler, _KEPT, found)
    return found
