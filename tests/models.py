"""Tiny randomly initialised models of families that share little with the usual one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 512
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "initializer_range": 0.15,
    "bos_token_id": 0, "eos_token_id": 1, "dtype": "float32",
}  # fmt: skip
SHARED = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
EXPERTS = {
    "qwen3_moe": {"moe_intermediate_size": 64, "num_experts": 8, "norm_topk_prob": True},
    "olmoe": {"num_experts": 8, "norm_topk_prob": False, "num_attention_heads": 2},
    "mixtral": {"num_local_experts": 8},
    "glm4_moe": {"moe_intermediate_size": 64, "n_routed_experts": 8, **SHARED},
    "gpt_oss": {"num_local_experts": 8, "pad_token_id": 0},
}
"""Settings of families with experts, by the type of the model."""
TIED = {"tie_word_embeddings": True}
DENSE: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {**TIED, "num_attention_heads": 2},
    "qwen3": TIED,
    "smollm3": {**TIED, "no_rope_layers": [1, 0], "pad_token_id": 0},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 32, "pad_token_id": 0},
    "gemma3_text": {
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "pad_token_id": 0,
    },
    "phi3": {"pad_token_id": 0, "num_attention_heads": 2},
    "glm4": {"pad_token_id": 0},
    "olmo2": {"num_attention_heads": 2},
    "granite": {"attention_multiplier": 0.18, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "nemotron": {"partial_rotary_factor": 0.5},
    "seed_oss": {},
    "ernie4_5": TIED,
    "exaone4": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "hunyuan_v1_dense": {},
}
"""Settings of further families by the type of the model."""


def save_with_the_words_of(model: str, folder: Path, hidden_size: int, num_heads: int, seed: int = 0) -> str:
    """Save a model of the usual family, of two layers, with another one's tokenizer; return its folder."""
    from transformers import AutoTokenizer

    from asyncrl.train.models.tiny_model import build_model, save

    tokenizer = AutoTokenizer.from_pretrained(model)
    built = build_model(len(tokenizer), hidden_size, 2, num_heads, 256, tokenizer.eos_token_id, seed=seed)
    save(folder, built, tokenizer)
    return str(folder)


def save_experts(family: str, folder: Path, seed: int = 0) -> Any:
    """Save a model of a family in `EXPERTS`, with 8 experts of which each token takes 2; return it."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[family](**SIZES | EXPERTS[family], intermediate_size=64, num_experts_per_tok=2)
    return _saved(config, folder, seed)


def save_dense(family: str, folder: Path, seed: int = 0) -> Any:
    """Save a model of a family in `DENSE`; return it."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[family](**SIZES | {"intermediate_size": 128} | DENSE[family])
    return _saved(config, folder, seed)


def save_hybrid(folder: Path, seed: int = 0) -> Any:
    """Save a model whose layers have attention and a state-space model (Falcon-H1) side by side; return it."""
    from transformers import FalconH1Config

    config = FalconH1Config(
        **SIZES, intermediate_size=64, mamba_n_heads=8, mamba_d_head=16, mamba_d_ssm=128, mamba_d_state=32,
        mamba_n_groups=1, mamba_chunk_size=64,
    )  # fmt: skip
    return _saved(config, folder, seed)


def save_deepseek(folder: Path, seed: int = 0) -> Any:
    """Save a model with MLA and experts (DeepSeek-V3) that vLLM serves on a CPU; return it."""
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=512, qk_rope_head_dim=64,
        qk_nope_head_dim=32, v_head_dim=32, max_position_embeddings=512, initializer_range=0.15, dtype="float32",
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = _saved(config, folder, seed)
    path = folder / "config.json"
    # What transformers leaves out and vLLM asks for.
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"})
    )
    return model


def _saved(config: Any, folder: Path, seed: int) -> Any:
    """Save a model with this configuration and random weights; return it."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model
