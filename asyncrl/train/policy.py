"""The trained model as one module: token ids in, log-probabilities of the sampled tokens out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHUNK_TOKENS = 8192
"""Sampled positions whose logits are held at once."""


class PolicyModel(nn.Module):
    """Wraps a causal LM so that the forward pass computes logits only where a token was sampled.

    Prompts and observations need no logits; with short turns they are most of the tokens, and the vocabulary
    projection is most of the memory.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, token_ids: Tensor, mask: Tensor, temperature: float, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return `(logp, entropy)`, both [B,T] and zero where `mask` is False.

        `logp[b, t]` is the log-probability of `token_ids[b, t]` given what precedes it, at `temperature`.
        Rows are padded on the right: causal attention keeps padding out of every sampled position, so no
        attention mask is needed. `entropy` is that of the full distribution, None unless asked for.
        """
        hidden = self.model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
        target = mask.clone()
        target[:, 0] = False
        states = hidden[:, :-1][target[:, 1:]]
        labels = token_ids[target]
        logps, entropies = [], []
        for start in range(0, max(1, states.shape[0]), CHUNK_TOKENS):
            part = states[start : start + CHUNK_TOKENS]
            logits = self.model.lm_head(part).float() / temperature
            log_softmax = torch.log_softmax(logits, dim=-1)
            logps.append(log_softmax.gather(-1, labels[start : start + CHUNK_TOKENS, None]).squeeze(-1))
            if entropy:
                entropies.append(-(log_softmax.exp() * log_softmax).sum(-1))
        logp = _scatter(torch.cat(logps), target)
        return logp, _scatter(torch.cat(entropies), target) if entropy else None


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Place [N] values at the True positions of [B,T] `mask`, zeros elsewhere; keeps the gradient."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def load_policy(path: str, dtype: str, gradient_checkpointing: bool = False) -> PolicyModel:
    """Load a causal LM from a folder or hub name."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    if gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return PolicyModel(model)
