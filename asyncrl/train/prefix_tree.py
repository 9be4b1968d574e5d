"""Prefix sharing: rows with common prefixes as a tree of tokens, so that a model computes a shared prefix once.

The rollouts of a group share their prompt, those of a branching search share whole turns, and short ones are often
identical. Everything in a transformer except attention treats each token by itself, so it runs over the nodes of the
tree. Attention runs over the distinct rows exactly as without a tree: each row gathers the queries, keys and values of
its nodes, and the results are scattered back to the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "asyncrl_prefix_tree"
"""The name under which the attention is registered with transformers."""
INNER = "sdpa"
PROBE_ERROR_RATIO = 0.1
"""Trees are used when a probe's error is below this share of the error without tree attention.

Error: the distance of the hidden states from those of the plain rows. With tree attention only rounding should remain;
without it the nodes are read as one long row, which is wrong."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """N nodes of B rows of T tokens. A node stands for one token after all that precede it."""

    token_ids: Tensor
    """[N] int64."""
    depths: Tensor
    """[N] int64: how many tokens precede it."""
    parents: Tensor
    """[N] int64; a first token is its own."""
    rows: Tensor
    """[B,T] int64: the node of each token; 0 beyond a row's length."""
    leaves: Tensor
    """[L,W] int64: the distinct rows that are no prefix of another, as in `rows`. W is the longest of them."""
    places: Tensor
    """[N] int64: a flat index l * W + t of each node in `leaves`."""
    sources: Tensor
    """[N] int64: a flat index b * T + t of each node in the rows that the tree was made of."""

    def to(self, device: torch.device) -> PrefixTree:
        """Return the tree on `device`."""
        return PrefixTree(*(getattr(self, field.name).to(device) for field in fields(self)))


def tree_of(token_ids: Tensor, mask: Tensor, experts: Tensor | None = None) -> PrefixTree:
    """Return the tree of rows [B,T], each up to its last sampled token: nothing reads what comes after it.

    experts: [B,T,layers,K] that tokens are routed to (`asyncrl.train.router_replay`); those of shared tokens are equal.
    """
    sampled = mask.cpu().numpy()
    lengths = np.where(sampled.any(1), sampled.shape[1] - sampled[:, ::-1].argmax(1), 1)
    known = None if experts is None else experts.flatten(2).cpu().numpy()
    return build_tree(token_ids.cpu().numpy(), lengths, known).to(token_ids.device)


def build_tree(token_ids: np.ndarray, lengths: np.ndarray, more: np.ndarray | None = None) -> PrefixTree:
    """Return the tree of rows `token_ids` [B,T], of which the first `lengths` [B] (1..T) tokens count.

    more: [B,T,C] whole numbers that must agree, too, where rows share a token.
    """
    rows = np.zeros(token_ids.shape, np.int64)
    keys = token_ids[..., None]
    if more is not None:
        keys = np.concatenate([keys, more.astype(keys.dtype)], axis=-1)
    width = int(lengths.max())
    # In descending order, a row follows those it is a prefix of, next to the one it shares most with.
    order = sorted(range(len(rows)), key=lambda b: keys[b, : lengths[b]].tobytes(), reverse=True)
    made: list[tuple[int, int, int]] = []
    nodes, before = 0, -1
    for row in order:
        length = int(lengths[row])
        shared = 0 if before < 0 else _shared(keys, before, row, int(lengths[before]), length)
        rows[row, :shared] = rows[before, :shared]
        rows[row, shared:length] = np.arange(nodes, nodes + length - shared)
        if shared < length:
            made.append((row, shared, length))
        nodes, before = nodes + length - shared, row
    parts = {
        "token_ids": [token_ids[row, start:end] for row, start, end in made],
        "depths": [np.arange(start, end) for _, start, end in made],
        "parents": [rows[row, np.maximum(np.arange(start, end) - 1, 0)] for row, start, end in made],
        "places": [np.arange(start, end) + leaf * width for leaf, (_, start, end) in enumerate(made)],
        "sources": [np.arange(start, end) + row * token_ids.shape[1] for row, start, end in made],
    }
    arrays = {name: np.concatenate(values) for name, values in parts.items()}
    arrays |= {"rows": rows, "leaves": rows[[row for row, _, _ in made], :width]}
    return PrefixTree(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _shared(keys: np.ndarray, a: int, b: int, a_length: int, b_length: int) -> int:
    """Return the length of the common prefix of two rows of `keys` [B,T,C]."""
    most = min(a_length, b_length)
    differ = (keys[a, :most] != keys[b, :most]).any(-1)
    return int(differ.argmax()) if differ.any() else most


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree: PrefixTree | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it, over the leaves of `tree`; without one the plain attention.

    `query`, `key` and `value` [1,heads,N,D] are of the nodes; returns [1,N,heads,D] and no weights.
    """
    inner = AttentionInterface()[INNER]
    if tree is None:
        return inner(module, query, key, value, attention_mask, **rest)
    rest.pop("position_ids", None)
    shape = tree.leaves.shape
    q, k, v = (
        x[0].transpose(0, 1).index_select(0, tree.leaves.flatten()).unflatten(0, shape).transpose(1, 2)
        for x in (query, key, value)
    )
    found, _ = inner(module, q, k, v, None, **rest)
    return found.flatten(0, 1).index_select(0, tree.places)[None], None


AttentionInterface.register(NAME, tree_attention)


def run_trunk(trunk: Any, tree: PrefixTree, more: Mapping[str, Tensor] = MappingProxyType({})) -> Tensor:
    """Return the last hidden states [N,H] of the nodes. more: further arguments of the trunk."""
    return _run(trunk, tree, tree, more)


def _run(
    trunk: Any,
    tree: PrefixTree,
    attend_over: PrefixTree | None,
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> Tensor:
    given = {"input_ids": tree.token_ids[None], "position_ids": tree.depths[None], "use_cache": False}
    return trunk(**given, tree=attend_over, **more).last_hidden_state[0]


def uses_prefix_trees(model: Any) -> bool:
    """Return whether `enable_prefix_trees` succeeded for this model, or for the one it is the trunk of."""
    return model.config.get_text_config()._attn_implementation == NAME


def may_take_prefix_trees(model: Any) -> bool:
    """Return whether all layers of a causal LM have full causal attention through transformers' attention interface."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windowed = (
        bool(getattr(config, "sliding_window", None)) if kinds is None else set(kinds) != {"full_attention"}
    )
    return not windowed and config._attn_implementation == INNER and model._supports_attention_backend


def enable_prefix_trees(model: Any) -> bool:
    """Make a causal LM of transformers compute prefix trees; return False and leave it unchanged where it cannot.

    It can when `may_take_prefix_trees` says so, and when a probe with a small tree gives the hidden states of the plain
    rows.
    """
    if not may_take_prefix_trees(model):
        return False
    token_ids = torch.arange(16).remainder(min(8, model.config.get_text_config().vocab_size)).repeat(3, 1)
    token_ids[1, 10:] = 1
    counts = torch.arange(16) < torch.tensor([[16], [12], [6]])
    tree = build_tree(token_ids.numpy(), counts.sum(1).numpy()).to(model.device)
    training = model.training
    model.eval()
    with torch.no_grad():
        plain = model.base_model(input_ids=token_ids.to(model.device), use_cache=False).last_hidden_state
        model.set_attn_implementation(NAME)
        agrees = _probe_agrees(model.base_model, tree, plain.float(), counts.to(model.device))
    model.train(training)
    if not agrees:
        model.set_attn_implementation(INNER)
    return agrees


def _probe_agrees(trunk: Any, tree: PrefixTree, plain: Tensor, counts: Tensor) -> bool:
    """Compare with the hidden states `plain` [B,T,H] of the rows, where `counts` [B,T]."""

    def distance(given: PrefixTree | None) -> float:
        return float((_run(trunk, tree, given).float()[tree.rows] - plain)[counts].norm())

    try:
        return distance(tree) < PROBE_ERROR_RATIO * distance(None)
    except TypeError:
        # The model does not pass keyword arguments on to its attention.
        return False
