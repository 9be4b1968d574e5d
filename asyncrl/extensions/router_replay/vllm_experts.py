"""Recording the experts that each token was routed to, on vLLM's CPU backend.

vLLM returns them (`--enable-return-routed-experts`) from its second model runner only, which needs a GPU. Here the
CPU's runner gets the same connector: routers hand over their choice in each forward pass, and it keeps that of each
block of the KV cache. So a token from the prefix cache has the experts by which its keys and values were computed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncrl.extensions.router_replay.token_extra import EXPERTS
from asyncrl.weights.vllm_hooks import Asked, Engine, EngineHook

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

ROUTED_FROM = "routed_from"
"""In a request, from which token on its answer is to have the experts."""


class RecordedExperts(EngineHook):
    """Answers which experts tokens were routed to, of an engine that records them."""

    async def read(self, engine: Engine, asked: Asked) -> None:
        """See `EngineHook`."""
        if asked.request.get(ROUTED_FROM) is not None:
            asked.sampling = copy.copy(asked.sampling)
            asked.sampling.routed_experts_prompt_start = int(asked.request[ROUTED_FROM])

    async def report(
        self, engine: Engine, asked: Asked, final: RequestOutput, answer: dict[str, Any]
    ) -> None:
        """See `EngineHook`."""
        experts = final.outputs[0].routed_experts
        if asked.request.get(ROUTED_FROM) is not None and experts is not None:
            narrow = np.ascontiguousarray(experts, experts.dtype.newbyteorder("<"))
            answer[EXPERTS] = {
                "dtype": narrow.dtype.str, "shape": list(narrow.shape), "data": narrow.tobytes()
            }  # fmt: skip


def record_experts() -> None:
    """Let vLLM's CPU backend start with `--enable-return-routed-experts`; on GPUs it does."""
    from vllm.config import VllmConfig
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return

    verify: Any = VllmConfig._verify_aux_output_compatibility

    def verify_but_for_the_runner(config: Any) -> None:
        if not config.aux_output_config.enabled:
            return
        if config.parallel_config.world_size > 1:
            raise ValueError("on a CPU, experts are recorded with a tensor_parallel_size of 1 only")
        verify(_WithSecondRunner(config))

    _set(VllmConfig, "_verify_aux_output_compatibility", verify_but_for_the_runner)
    _connect_runner()


class _WithSecondRunner:
    """A configuration whose check for the second model runner succeeds; the other checks hold here, too."""

    use_v2_model_runner = True

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def _connect_runner() -> None:
    """Have the CPU's runner do with the connector what the second one does."""
    from vllm.distributed.aux_output_connector.worker import get_aux_output_connector
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    initialize: Any = CPUModelRunner.initialize_kv_cache
    execute: Any = CPUModelRunner.execute_model
    sample: Any = CPUModelRunner.sample_tokens

    def initialize_kv_cache(self: Any, kv_cache_config: Any, is_profiling: bool = False, **rest: Any) -> None:
        initialize(self, kv_cache_config, is_profiling, **rest)
        if not is_profiling:
            self.experts = get_aux_output_connector(self.model, self.vllm_config, kv_cache_config)

    def execute_model(self: Any, scheduler_output: Any, *rest: Any) -> Any:
        self.experts.begin_step(scheduler_output.aux_output_connector_metadata)
        self.experts_scheduled = scheduler_output.num_scheduled_tokens
        return execute(self, scheduler_output, *rest)

    def sample_tokens(self: Any, *rest: Any) -> Any:
        step = _Step(self.input_batch, self.experts_scheduled)
        output = sample(self, *rest)
        pending = self.experts.prepare_output(step)
        num_sampled = np.array([len(tokens) for tokens in output.sampled_token_ids])
        pending.enqueue_cpu_copy(num_sampled, np.zeros_like(num_sampled))
        output.aux_output_connector_output = pending.process_output()
        return output

    for function in (initialize_kv_cache, execute_model, sample_tokens):
        _set(CPUModelRunner, function.__name__, function)


class _Step:
    """What the connector reads of a batch, kept from before its tokens are sampled."""

    def __init__(self, batch: Any, num_scheduled: dict[str, int]) -> None:
        self.req_ids = list(batch.req_ids)
        ends = np.cumsum([num_scheduled[request] for request in self.req_ids])
        self.query_start_loc_np = np.concatenate([[0], ends])
        self.num_computed_tokens_np = batch.num_computed_tokens_cpu[: len(self.req_ids)].copy()


def _set(owner: Any, name: str, function: Any) -> None:
    setattr(owner, name, function)
