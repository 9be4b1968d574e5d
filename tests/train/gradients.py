"""Gradients of one loss over fixed rows, computed in every way a trainer may, in process or on two ranks.

The loss is a weighted sum of the log-probability and the entropy of each sampled token.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import deepspeed
import numpy as np
import torch
from deepspeed.utils import safe_get_full_grad
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from asyncrl.config import LoraConfig, TrainConfig
from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.extensions.lora.adapter import adapters
from asyncrl.train.engine.deepspeed_engine import TrainEngine, divided_loading
from asyncrl.train.models import token_scores
from asyncrl.train.models.loading import keep_activations_on_host, load_policy
from asyncrl.train.models.policy import PolicyModel
from asyncrl.train.models.prefix_tree import INNER, uses_prefix_trees

VOCAB_SIZE = 64
SIZES = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.15,
}  # fmt: skip
MODELS = {
    "tied": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
    "untied": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "sliding window": MistralConfig(**SIZES, sliding_window=6),
    "experts": Qwen3MoeConfig(
        **SIZES, head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2
    ),
    "latent attention": DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4}, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8,
    ),
}  # fmt: skip
ENTROPY_COEF = 0.3
TEMPERATURE = 0.8
TIMES = 16
"""How often rows are used where the precision of sums shows."""


def save_model(name: str, folder: Path) -> str:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(MODELS[name]).save_pretrained(folder)
    return str(folder)


def make_rows() -> tuple[list[int], Tensor, Tensor, Tensor]:
    """Return lengths, token ids, mask and weights of rows that share prefixes; one is there twice."""
    rng = np.random.default_rng(0)
    lengths = [24, 20, 15, 15, 9, 22, 11]
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    prompts = [rng.integers(5, VOCAB_SIZE, 8) for _ in range(2)]
    for row, length in enumerate(lengths):
        tokens = np.r_[prompts[row // 4], rng.integers(5, VOCAB_SIZE, length - 8)]
        ids[row, :length] = torch.from_numpy(tokens)
        mask[row, 8:length] = torch.from_numpy(rng.random(length - 8) < 0.7)
        mask[row, length - 1] = True
    ids[3], mask[3] = ids[2], mask[2]
    return lengths, ids, mask, torch.linspace(-1.0, 1.0, ids.numel()).view(ids.shape)


def reference(path: str) -> dict[str, Tensor]:
    """Return the gradient by transformers alone, one row after the other."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for length, ids, mask, weight in zip(*make_rows(), strict=True):
        log_p = (model(ids[None, :length]).logits[0, :-1] / TEMPERATURE).log_softmax(-1)
        logp = log_p.gather(-1, ids[1:length, None]).squeeze(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        kept = mask[1:length]
        ((logp + ENTROPY_COEF * entropy) * weight[1:length])[kept].sum().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def loss_of(outputs: dict[str, Tensor], weight: Tensor) -> Tensor:
    return ((outputs["logp"] + ENTROPY_COEF * outputs["entropy"]) * weight).sum()


def cut(part: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows `part` as tensors; a rank without any gets one that counts nothing."""
    lengths, ids, mask, weight = make_rows()
    if not part:
        return torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.bool), torch.zeros(1, 2)
    width = max(lengths[row] for row in part)
    return ids[part, :width], mask[part, :width], weight[part, :width]


def load(path: str, checkpointed: bool = False, lora: bool = False, dtype: str = "float32") -> PolicyModel:
    """Load a policy; an adapter is one that changes something."""
    adapter = LoraConfig(rank=4 if lora else 0, target_modules=["o_proj"])
    policy = load_policy(path, dtype, checkpointed, changes=adapters(adapter, 0))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return policy


def gradient(
    path: str,
    trees: bool = True,
    checkpointed: bool = False,
    lora: bool = False,
    chunk_tokens: int = 10**6,
    budget: int = 10**6,
    offloaded: bool = False,
) -> dict[str, Tensor]:
    """Return the gradient by the policy module."""
    policy = load(path, checkpointed, lora)
    if offloaded:
        keep_activations_on_host(policy.model.base_model)
    if not trees and uses_prefix_trees(policy.model):
        policy.model.set_attn_implementation(INNER)
    with chunks_of(chunk_tokens):
        for part in plan_micro_batches(make_rows()[0], budget)[0]:
            ids, mask, weight = cut(part)
            loss_of(policy(ids, mask, TEMPERATURE, ("entropy",)), weight).backward()
    return {n.removeprefix("model."): p.grad for n, p in policy.named_parameters() if p.grad is not None}


def summed_in_float32(path: str, budget: int, ranks: int, times: int) -> dict[str, Tensor]:
    """Return the sum of the bfloat16 gradients of all micro-batches of all ranks, so many times over."""
    policy = load(path, dtype="bfloat16")
    total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in policy.model.named_parameters()}
    for part in chain.from_iterable(plan_micro_batches(make_rows()[0], budget, ranks)):
        policy.zero_grad()
        ids, mask, weight = cut(part)
        (loss_of(policy(ids, mask, TEMPERATURE, ("entropy",)), weight) * ranks).backward()
        for name, parameter in policy.model.named_parameters():
            if parameter.grad is not None:
                total[name] += parameter.grad * (times / ranks)
    return {name: tensor.float() for name, tensor in total.items()}


def zero_gradient(
    policy: PolicyModel, stage: int, budget: int, dtype: str = "float32", times: int = 1, together: int = 1
) -> dict[str, Tensor]:
    """Return the gradient by a DeepSpeed engine of `stage`; each rank computes its share. A collective.

    times: how often each row is used; together: how many ranks compute the same rows.
    """
    train = TrainConfig(zero_stage=stage, sequence_parallel=together)  # type: ignore[arg-type]
    return engine_gradient(TrainEngine(policy, train, dtype), budget, times)


def engine_gradient(engine: TrainEngine, budget: int, times: int = 1) -> dict[str, Tensor]:
    plan = plan_micro_batches(make_rows()[0], budget, engine.num_shares)[engine.share] * times
    for number, part in enumerate(plan):
        ids, mask, weight = cut(part)
        loss = loss_of(engine.outputs(ids, mask, TEMPERATURE, ("entropy",)), weight)
        engine.backward(loss, last=number == len(plan) - 1)
    found = {}
    for name, parameter in engine.engine.module.model.named_parameters():
        grad = safe_get_full_grad(parameter) if parameter.requires_grad else None
        if grad is not None:
            found[name] = grad.float().clone().contiguous()
    return found


@contextmanager
def chunks_of(tokens: int):
    """Hold the logits of so many tokens at once while it is open."""
    before = token_scores.CHUNK_LOGITS
    token_scores.CHUNK_LOGITS = tokens * VOCAB_SIZE
    try:
        yield
    finally:
        token_scores.CHUNK_LOGITS = before


def main(folder: str, *names: str) -> None:
    """Leave the gradient of each model (all weights, or an adapter) and ZeRO stage, checkpointed, in `folder`.

    Each time by ranks with rows of their own, and by ranks that compute the same rows together.
    """
    if not names:
        return in_bfloat16(folder)
    for name in names:
        path, _, adapter = name.partition("+")
        for stage in range(4):
            for together in (1, 2):
                with chunks_of(5):
                    policy = load(f"{folder}/{path}", True, bool(adapter))
                    found = zero_gradient(policy, stage, 40, together=together)
                keep(found, f"{folder}/{name}-{stage}-{together}.safetensors")
        keep(divided_gradient(f"{folder}/{path}", bool(adapter)), f"{folder}/{name}-divided.safetensors")


def divided_gradient(path: str, lora: bool) -> dict[str, Tensor]:
    """Return the gradient of a model that was divided as it was loaded, after a look at its weights and buffers."""
    train = TrainConfig(zero_stage=3)
    with divided_loading(train, "float32"):
        policy = load(path, True, lora)
    assert all(hasattr(p, "ds_id") or ".lora_" in name for name, p in policy.named_parameters())
    engine = TrainEngine(policy, train, "float32")
    assert all(p.ds_tensor.numel() <= -(-p.ds_numel // engine.num_ranks) for p in policy.parameters())
    whole = load(path, True, lora).model
    with deepspeed.zero.GatheredParameters(list(policy.parameters())):
        for (name, found), (_, wanted) in zip(
            policy.model.named_parameters(), whole.named_parameters(), strict=True
        ):
            assert torch.equal(found, wanted), name
    for (name, found), (_, wanted) in zip(policy.model.named_buffers(), whole.named_buffers(), strict=True):
        assert torch.equal(found, wanted), name
    assert uses_prefix_trees(policy.model) == uses_prefix_trees(whole)
    return engine_gradient(engine, 40)


def in_bfloat16(folder: str) -> None:
    """Leave the accumulated bfloat16 gradient of the tied model for each ZeRO stage in `folder`."""
    for stage in range(4):
        found = zero_gradient(load(f"{folder}/tied", dtype="bfloat16"), stage, 40, "bfloat16", TIMES)
        keep(found, f"{folder}/bfloat16-{stage}.safetensors")


def keep(gradient: dict[str, Tensor], path: str) -> None:
    if torch.distributed.get_rank() == 0:
        save_file(gradient, path)
