"""The trained models as modules: token ids in, log-probabilities of the sampled tokens (or values) out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.config import LoraConfig
from asyncrl.train.lora import add_adapter
from asyncrl.train.prefix_tree import enable_prefix_trees, run_trunk, tree_of, uses_prefix_trees

FULL = LoraConfig()
"""No adapter: all weights are trained."""
CHUNK_TOKENS = 8192
"""Sampled positions whose logits are held at once."""
WANTED = ("entropy", "sum_pi_squared", "logits", "values", "detached_values")
"""What `PolicyModel.forward` computes only when asked."""


class PolicyModel(nn.Module):
    """Wraps a causal LM so that the forward pass computes logits only where a token was sampled.

    Prompts and observations need no logits; with short turns they are most of the tokens, and the vocabulary
    projection is most of the memory. With `value_head` the trunk also feeds a critic. Shared
    prefixes are computed once where the model supports it (`asyncrl.train.prefix_tree`).
    """

    def __init__(self, model: Any, value_head: bool = False) -> None:
        super().__init__()
        self.model = model
        self.value_head = _value_head(model.config.hidden_size, model.dtype) if value_head else None

    def forward(
        self, token_ids: Tensor, mask: Tensor, temperature: float, want: tuple[str, ...] = ()
    ) -> dict[str, Tensor]:
        """Return `logp` [B,T] and what `want` names; everything is zero where `mask` is False.

        `logp[b, t]` is the log-probability of `token_ids[b, t]` given what precedes it, at `temperature`.
        Rows are padded on the right: causal attention keeps padding out of every sampled position, so no
        attention mask is needed. `entropy` and `sum_pi_squared` [B,T] are of the full distribution, `logits`
        [B,T,V] at `temperature`. `values` gives `values` [B,T] and `end_values` [B] (see `read_values`);
        `detached_values` the same without gradient into the trunk.
        """
        target = mask.clone()
        target[:, 0] = False
        shares_prefixes = uses_prefix_trees(self.model)
        if shares_prefixes:
            tree = tree_of(token_ids, mask)
            nodes = run_trunk(self.model.base_model, tree)
            chosen, again = torch.unique(tree.rows[target], return_inverse=True)
            states, labels = nodes[tree.parents[chosen]], tree.token_ids[chosen]
        else:
            hidden = self.model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
            states, labels, again = hidden[:, :-1][target[:, 1:]], token_ids[target], None
        found = {
            name: _scatter(part if again is None else part.index_select(0, again), target)
            for name, part in self._chunks(states, labels, temperature, want).items()
        }
        if self.value_head is not None and {"values", "detached_values"} & set(want):
            trunk = nodes[tree.rows] if shares_prefixes else hidden
            trunk = trunk.detach() if "detached_values" in want else trunk
            found["values"], found["end_values"] = read_values(self.value_head, trunk, target)
        return found

    def _chunks(
        self, states: Tensor, labels: Tensor, temperature: float, want: tuple[str, ...]
    ) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {}
        for start in range(0, max(1, states.shape[0]), CHUNK_TOKENS):
            part = states[start : start + CHUNK_TOKENS]
            logits = self.model.lm_head(part).float() / temperature
            log_softmax = torch.log_softmax(logits, dim=-1)
            label = labels[start : start + CHUNK_TOKENS, None]
            parts.setdefault("logp", []).append(log_softmax.gather(-1, label).squeeze(-1))
            if "entropy" in want:
                parts.setdefault("entropy", []).append(-(log_softmax.exp() * log_softmax).sum(-1))
            if "sum_pi_squared" in want:
                parts.setdefault("sum_pi_squared", []).append((2 * log_softmax).exp().sum(-1))
            if "logits" in want:
                parts.setdefault("logits", []).append(logits)
        return {name: torch.cat(values) for name, values in parts.items()}


class CriticModel(nn.Module):
    """A transformer with a value head, initialised from the policy's trunk; starts at value 0."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model
        self.value_head = _value_head(model.config.hidden_size, model.dtype)

    def forward(self, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(values [B,T], end_values [B])`; see `read_values`."""
        if uses_prefix_trees(self.model):
            tree = tree_of(token_ids, mask)
            hidden = run_trunk(self.model, tree)[tree.rows]
        else:
            hidden = self.model(input_ids=token_ids, use_cache=False).last_hidden_state
        target = mask.clone()
        target[:, 0] = False
        return read_values(self.value_head, hidden, target)


def read_values(head: nn.Module, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return `(values [B,T], end_values [B])` from hidden states [B,T,H].

    `values[b, t]` is read one position earlier: it is the value of the state in which token t was chosen.
    `end_values` is read at the last sampled token: the value of what follows it.
    """
    values = _scatter(head(hidden[:, :-1][mask[:, 1:]]).squeeze(-1).float(), mask)
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = torch.where(mask, positions, 0).amax(-1)
    end = head(hidden[torch.arange(len(last), device=mask.device), last]).squeeze(-1).float()
    return values, end


def _value_head(size: int, dtype: torch.dtype) -> nn.Linear:
    head = nn.Linear(size, 1, dtype=dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Place [N,...] values at the True positions of [B,T] `mask`, zeros elsewhere; keeps the gradient."""
    shape = (*mask.shape, *values.shape[1:])
    where = mask if values.ndim == 1 else mask[..., None].expand(shape)
    return torch.zeros(shape, dtype=values.dtype, device=values.device).masked_scatter(where, values)


def load_policy(
    path: str,
    dtype: str,
    gradient_checkpointing: bool = False,
    value_head: bool = False,
    lora: LoraConfig = FULL,
    seed: int = 0,
) -> PolicyModel:
    """Load a causal LM from a folder or hub name; with a rank in `lora` only an adapter of it is trained."""
    model = _load(path, dtype, gradient_checkpointing)
    enable_prefix_trees(model)
    if lora.rank:
        add_adapter(model, lora, seed)
    return PolicyModel(model, value_head)


def load_frozen(path: str, dtype: str, lora: LoraConfig = FULL, seed: int = 0) -> PolicyModel:
    """Load a causal LM that is only read: a reference, a teacher, an averaged policy."""
    return load_policy(path, dtype, lora=lora, seed=seed).eval().requires_grad_(False)


def load_critic(path: str, dtype: str, gradient_checkpointing: bool = False) -> CriticModel:
    """Load a critic that starts from a causal LM's trunk."""
    model = _load(path, dtype, gradient_checkpointing)
    enable_prefix_trees(model)
    return CriticModel(model)


def _load(path: str, dtype: str, gradient_checkpointing: bool = False) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    if gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model
