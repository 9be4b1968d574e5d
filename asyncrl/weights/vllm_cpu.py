"""What vLLM's CPU backend needs so that updated weights are the ones that compute, and MLA is right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from asyncrl.kv_blocks import X86_TOKENS
from asyncrl.weights.vllm_int8 import mend_int8

_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"

SPIN_S = 0.0005
"""How long a worker in a process of its own looks for the next message before it sleeps until it is woken."""

_packed: dict[tuple[int, str], torch.Tensor] = {}
"""Experts' weights in the form the kernels read, by the address of the live ones."""


def keep_weights_live() -> None:
    """Have layers compute from the parameters that an update writes, not from copies made at load.

    Linear layers would be repacked into oneDNN handles and experts into blocked layouts, of which an update knows
    nothing: outputs would match neither the old nor the new model. Where a CPU has AMX, vLLM repacks for its tiles,
    too, and in latent attention and int8 layers it takes kernels of bfloat16 whatever the model's type.
    """
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
    setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)  # noqa: B010 - mypy forbids to assign it
    mend_int8()
    pack, compute = _custom_ops.cpu_prepack_moe_weight, _custom_ops.cpu_fused_moe

    def packed(weight: torch.Tensor, isa: str) -> torch.Tensor:
        key = (weight.data_ptr(), isa)
        if key not in _packed:
            _packed[key] = pack(weight, isa)
        return _packed[key]

    def compute_packed(
        output: Any, tokens: Any, w13: Any, w2: Any, b13: Any, b2: Any, weights: Any, ids: Any, act: Any, isa: str,
        *rest: Any,
    ) -> Any:  # fmt: skip
        return compute(
            output, tokens, packed(w13, isa), packed(w2, isa), b13, b2, weights, ids, act, isa, *rest
        )

    replaced = {"cpu_prepack_moe_weight": lambda weight, isa: weight, "cpu_fused_moe": compute_packed}
    # Importing the module of the experts takes long, and most models have none.
    for module in (_custom_ops, *filter(None, [sys.modules.get(_EXPERTS)])):
        for name, function in replaced.items():
            setattr(module, name, function)


def allow_short_blocks() -> None:
    """Let blocks of the KV cache be as short as the kernels for x86 can read. vLLM asks for more on every CPU, since
    those for other ones need it."""
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    def sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(X86_TOKENS)]

    setattr(CPUAttentionBackend, "get_supported_kernel_block_sizes", staticmethod(sizes))  # noqa: B010 - as above


def cache_no_states() -> None:
    """Have models with state-space or linear attention layers start without a cache of prefixes. vLLM has one for
    their states only where it prefills in pieces, which engines on a CPU do not, and refuses to start otherwise."""
    from vllm.model_executor.models.config import MambaModelConfig

    check = MambaModelConfig.verify_and_update_config

    def check_without(vllm_config: Any) -> None:
        if not vllm_config.scheduler_config.enable_chunked_prefill:
            vllm_config.cache_config.enable_prefix_caching = False
        check(vllm_config)

    setattr(MambaModelConfig, "verify_and_update_config", staticmethod(check_without))  # noqa: B010 - as above


def weights_changed() -> None:
    """Pack experts again from now on. Called after each update."""
    _packed.clear()


def rotate_heads_by_torch() -> None:
    """Rotate queries that are split into heads, as those of MLA, by torch: vLLM's CPU kernel is wrong for them beyond
    the first token."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    by_kernel = RotaryEmbedding.forward_cpu

    def forward(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
        if query.dim() == 2:
            return by_kernel(self, positions, query, key)
        return self.forward_native(positions, query, key)

    setattr(RotaryEmbedding, "forward_cpu", forward)  # noqa: B010 - mypy forbids to assign it


def sleep_between_messages() -> None:
    """Have processes of an engine that wait for each other's next message sleep soon.

    vLLM has each of them look for it for a second, without a pause, so that a GPU waits microseconds less. Here they
    would take the cores from those that compute, and an engine that is asked every second would never be idle.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    initialize: Any = SpinCondition.__init__

    def sleepy(
        self: Any, is_reader: bool, context: Any, notify_address: str, busy_loop_s: float = SPIN_S
    ) -> None:
        initialize(self, is_reader, context, notify_address, busy_loop_s)

    setattr(SpinCondition, "__init__", sleepy)  # noqa: B010 - mypy forbids to assign it


def make_room_between_stages() -> None:
    """Have an engine whose layers are split into stages make the tensors for what comes from the stage before: vLLM
    makes them when it warms up, which it does not where nothing is compiled."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    gather: Any = GPUModelRunner.sync_and_gather_intermediate_tensors

    def gather_with_room(self: Any, *rest: Any) -> Any:
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return gather(self, *rest)

    setattr(GPUModelRunner, "sync_and_gather_intermediate_tensors", gather_with_room)  # noqa: B010 - as above


def leave_rendezvous() -> None:
    """Have an engine over several machines leave the file by which the ranks of one machine would find each other.

    They do not use it, but vLLM names the segments after it by which they reduce in shared memory, and what removes
    these after a kill goes by the files (`asyncrl.scratch.clear_shared_memory`).
    """
    from vllm.utils import network_utils

    name = "get_file_store_init_method"
    choose: Callable[[], str] = getattr(network_utils, name)

    def choose_and_leave() -> str:
        method = choose()
        Path(method.removeprefix("file://")).touch()
        return method

    for module in (network_utils, *filter(None, [sys.modules.get("vllm.v1.executor.multiproc_executor")])):
        setattr(module, name, choose_and_leave)
