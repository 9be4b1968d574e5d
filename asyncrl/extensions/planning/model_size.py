"""How many parameters a model has, by its `config.json` alone. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters of a model, and those that one token passes through."""

    parameters: int
    active: int
    experts: int = 0
    """Of `parameters`, those of experts."""
    expert_share: float = 1.0
    """Share of a layer's experts that one token uses."""


def model_size(described: dict[str, Any]) -> ModelSize:
    """Count the parameters of a `config.json`: embeddings, attention, feed-forward layers and experts."""
    text = described.get("text_config", described)
    hidden, layers, heads = text["hidden_size"], text["num_hidden_layers"], text["num_attention_heads"]
    head_dim = text.get("head_dim") or hidden // heads
    kv_heads = text.get("num_key_value_heads") or heads
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    experts = text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts") or 0
    if experts:
        expert = 3 * hidden * text.get("moe_intermediate_size", text.get("intermediate_size", 0))
        per_layer, active = experts * expert, text["num_experts_per_tok"] * expert
    else:
        per_layer = active = 3 * hidden * text["intermediate_size"]
    tied = described.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    embeddings = (1 if tied else 2) * text["vocab_size"] * hidden
    return ModelSize(
        layers * (attention + per_layer) + embeddings,
        # Every token passes the output layer; its row of the input embeddings is looked up.
        layers * (attention + active) + text["vocab_size"] * hidden,
        layers * per_layer if experts else 0,
        text["num_experts_per_tok"] / experts if experts else 1.0,
    )
