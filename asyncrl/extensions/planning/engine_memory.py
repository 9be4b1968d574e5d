"""What an engine takes of a GPU: vLLM reserves a share and fills what is left of it with KV cache.

vLLM measures a forward pass with as many tokens as one step may have, and sampling for as many sequences; the numbers
here are estimates of the same. Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GIB = 2**30
STEP_TOKENS = {False: 2048, True: 8192}
"""Tokens of one step (`--max-num-batched-tokens`), by whether the GPU has 70 GiB or more, as vLLM's server chooses."""
LARGE_GPU = 70 * GIB
SAMPLING_COPIES = 5
"""Tensors of sequences times vocabulary in float32 that sampling holds: logits, their copy, probabilities, the sorted
ones and their places."""
GRAPHS = int(0.6 * GIB)
"""Captured CUDA graphs, outside of the share."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of one engine on each of its GPUs."""

    share: int
    """What vLLM reserves: `engine.gpu_memory_utilization` of the GPU."""
    weights: int
    activations: int
    """The bytes of activations of the largest step, an estimate."""
    kv_cache: int
    """What is left of the share; negative where the rest does not fit in."""
    kv_per_token: int
    kv_tokens: int

    def holds(self, tokens: int) -> bool:
        """True when the cache holds a sequence of so many tokens, without which vLLM does not start."""
        return self.kv_tokens >= tokens


def engine_memory(
    architecture: dict[str, Any], weights: int, gpu: int, utilization: float, tensor_parallel: int, max_num_seqs: int,
    element: int, pipeline_parallel: int = 1,
) -> EngineMemory:  # fmt: skip
    """Return what one engine takes of a GPU of `gpu` bytes.

    weights: bytes of the whole model. element: bytes of a number of its type.
    """
    text = architecture.get("text_config", architecture)
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    head_dim = text.get("head_dim") or hidden // heads
    kv_heads = text.get("num_key_value_heads") or heads
    if rank := text.get("kv_lora_rank"):
        per_layer = rank + text.get("qk_rope_head_dim", 0)
    else:
        per_layer = 2 * head_dim * -(-kv_heads // tensor_parallel)
    per_token = per_layer * -(-text["num_hidden_layers"] // pipeline_parallel) * element
    inner = max(
        text.get("intermediate_size") or 0,
        text.get("moe_intermediate_size", 0) * text.get("num_experts_per_tok", 1),
    )
    tokens = max(STEP_TOKENS[gpu >= LARGE_GPU], max_num_seqs)
    widths = 4 * hidden + (3 * inner + (heads + 2 * kv_heads) * head_dim) // tensor_parallel
    activations = tokens * widths * element + SAMPLING_COPIES * max_num_seqs * text["vocab_size"] * 4
    share, own = int(gpu * utilization), -(-weights // (tensor_parallel * pipeline_parallel))
    cache = share - own - activations
    return EngineMemory(share, own, activations, cache, per_token, max(0, cache) // per_token)
