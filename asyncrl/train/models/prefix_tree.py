"""Prefix sharing: rows with common prefixes as a tree of tokens, so that a model computes a shared prefix once.

The rollouts of a group share their prompt, those of a branching search share whole turns, and short ones are often
identical. Everything in a transformer except attention treats each token by itself, so it runs over the nodes of the
tree: no token is computed twice, padding not at all, and positions count from the start of each row. Attention has two
forms of the same mask, in which a token sees the tokens of its row that precede it, or a window of them:

| form | how |
|---|---|
| `sdpa` | rows of similar length together; each row gathers the queries, keys and values of its nodes |
| `flex` | FlexAttention over the nodes with a block mask; it has no backward pass on CPU, and is compiled |

Training takes the first on every device: `asyncrl plan memory` predicts it, and no run has shown yet where the second
is faster. `scripts/gpu_acceptance.py` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface
from transformers.integrations.flex_attention import compile_friendly_flex_attention

from asyncrl.errors import ConfigError

NAME = "asyncrl_prefix_tree"
"""The name under which the attention is registered with transformers."""
FLEX = f"{NAME}_flex"
"""Its form by FlexAttention."""
INNER = "sdpa"
MAX_PADDING = 0.25
"""Rows are taken together whose padding to the longest is at most this share of it."""
BLOCK = 128
"""Tokens of a block of FlexAttention's mask."""
PROBE_ERROR_RATIO = 0.1
"""Trees are used when a probe's error is below this share of the error without tree attention.

Error: the distance of the hidden states from those of the plain rows. With tree attention only rounding should remain;
without it the nodes are read as one long row, which is wrong."""


class RowsTogether(Protocol):
    """Ranks that compute the same rows together, each a part of the tokens."""

    @property
    def setting(self) -> str:
        """The key that asks for it, for messages."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def rank(self) -> int:
        """The rank of this process among them."""
        ...

    def to_heads(self, x: Tensor) -> Tensor:
        """Return all tokens of this rank's heads [1,H/size,n*size,D] for this rank's tokens `x` [1,H,n,D]."""
        ...

    def to_tokens(self, x: Tensor) -> Tensor:
        """Return all heads of this rank's tokens [1,n,H,D] for this rank's heads of all tokens `x` [1,n*size,h,D]."""
        ...

    def join(self, part: Tensor, mine: Tensor) -> Tensor:
        """Return values [N] or [N,H] of which each rank has those where its `mine` [N] holds, on all of them."""
        ...


@dataclass(frozen=True)
class PrefixTree:
    """N nodes of B rows of T tokens, in an order in which the nodes below one follow it without a gap.

    A node stands for one token after all that precede it.
    """

    token_ids: Tensor
    """[N] int64."""
    depths: Tensor
    """[N] int64: how many tokens precede it."""
    parents: Tensor
    """[N] int64; a first token is its own."""
    ends: Tensor
    """[N] int64: one beyond the last node below it."""
    rows: Tensor
    """[B,T] int64: the node of each token; 0 beyond a row's length."""
    leaves: tuple[Tensor, ...]
    """Buckets [L,W] int64 of the distinct rows that are no prefix of another, as in `rows`; W is the longest."""
    places: Tensor
    """[N] int64: an index into the concatenated, flat buckets of each node."""
    sources: Tensor
    """[N] int64: a flat index b * T + t of each node in the rows that the tree was made of."""
    group: RowsTogether | None = None
    """The ranks that compute the tree together; None where this one does alone."""
    masks: dict[int | None, BlockMask] = field(default_factory=dict, compare=False)
    """FlexAttention's masks by window, made when they are first needed."""

    def to(self, device: torch.device) -> PrefixTree:
        """Return the tree on `device`."""
        moved = {name: getattr(self, name).to(device) for name in TENSORS}
        return replace(self, **moved, leaves=tuple(bucket.to(device) for bucket in self.leaves))

    @property
    def part(self) -> slice:
        """The nodes that this rank computes; their end may be beyond the last node."""
        size, rank = (1, 0) if self.group is None else (self.group.size, self.group.rank)
        each = -(-len(self.token_ids) // size)
        return slice(rank * each, (rank + 1) * each)

    def mine(self, nodes: Tensor) -> Tensor:
        """Return which of `nodes` [K] this rank computes."""
        return (nodes >= self.part.start) & (nodes < self.part.stop)

    def block_mask(self, window: int | None) -> BlockMask:
        """Return FlexAttention's mask [N,N]: a node sees itself and those above it, the last `window` of them."""
        if window not in self.masks:
            self.masks[window] = _block_mask(self.ends, self.depths, window)
        return self.masks[window]


_group: RowsTogether | None = None
"""The ranks that compute the same rows together; None where each rank computes rows of its own."""


def compute_together(group: RowsTogether | None) -> None:
    """From now on divide each tree among the ranks of a group; None leaves whole trees to each rank."""
    global _group
    _group = group


TENSORS = ("token_ids", "depths", "parents", "ends", "rows", "places", "sources")


def without_trees(model: Any) -> None:
    """Raise `ConfigError` where ranks compute rows together, which takes a tree, and `model` knows none."""
    if _group is not None:
        raise ConfigError(
            f"{_group.setting}: must be 1 for {type(model).__name__}, whose attention cannot be "
            "computed over packed rows"
        )


def tree_of(token_ids: Tensor, mask: Tensor, read: Sequence[Tensor] = ()) -> PrefixTree:
    """Return the tree of rows [B,T], each up to its last sampled token: nothing reads what comes after it.

    read: [B,T,...] whole numbers each, which layers read besides the tokens; those of shared tokens are equal.
    """
    sampled = mask.cpu().numpy()
    lengths = np.where(sampled.any(1), sampled.shape[1] - sampled[:, ::-1].argmax(1), 1)
    known = np.concatenate([one.flatten(2).cpu().numpy() for one in read], -1) if read else None
    tree = build_tree(token_ids.cpu().numpy(), lengths, known).to(token_ids.device)
    return replace(tree, group=_group)


def build_tree(token_ids: np.ndarray, lengths: np.ndarray, more: np.ndarray | None = None) -> PrefixTree:
    """Return the tree of rows `token_ids` [B,T], of which the first `lengths` [B] (1..T) tokens count.

    more: [B,T,C] whole numbers that must agree, too, where rows share a token.
    """
    rows = np.zeros(token_ids.shape, np.int64)
    keys = token_ids[..., None]
    if more is not None:
        keys = np.concatenate([keys, more.astype(keys.dtype)], axis=-1)
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
    buckets = _buckets([end for _, _, end in made])
    leaves, places, offset = [], np.zeros(nodes, np.int64), 0
    for bucket in buckets:
        width = made[bucket[0]][2]
        leaves.append(torch.from_numpy(rows[[made[leaf][0] for leaf in bucket], :width]))
        for number, leaf in enumerate(bucket):
            row, start, end = made[leaf]
            places[rows[row, start:end]] = np.arange(start, end) + number * width + offset
        offset += len(bucket) * width
    parts = {
        "token_ids": np.concatenate([token_ids[row, start:end] for row, start, end in made]),
        "depths": np.concatenate([np.arange(start, end) for _, start, end in made]),
        "parents": np.concatenate([rows[row, np.maximum(np.arange(start, end) - 1, 0)] for row, start, end in made]),
        "ends": _ends(rows, made, nodes),
        "sources": np.concatenate([np.arange(start, end) + row * token_ids.shape[1] for row, start, end in made]),
        "rows": rows,
        "places": places,
    }  # fmt: skip
    tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in parts.items()}
    return PrefixTree(**tensors, leaves=tuple(leaves))


def _buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Return the numbers of rows that are padded to the longest of them, longest first."""
    found: list[list[int]] = []
    for leaf in sorted(range(len(lengths)), key=lambda leaf: -lengths[leaf]):
        if not found or lengths[leaf] < (1 - MAX_PADDING) * lengths[found[-1][0]]:
            found.append([])
        found[-1].append(leaf)
    return found


def _ends(rows: np.ndarray, made: Sequence[tuple[int, int, int]], nodes: int) -> np.ndarray:
    """Return [N] one beyond the last node below each: where a later row, or none, parts from its own."""
    ends = np.full(nodes, nodes, np.int64)
    for (row, _, end), (after, start, _) in pairwise(made):
        # What the next row shares with this one goes on; the rest of this one is over.
        ends[rows[row, start:end]] = rows[after, start]
    return ends


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
    """Attention as transformers calls it, over the rows of `tree`; without one the plain attention.

    `query`, `key` and `value` [1,heads,N,D] are of the nodes; returns [1,N,heads,D] and no weights.
    """
    if tree is None:
        return _plain(module, query, key, value, attention_mask, rest)
    rest.pop("position_ids", None)
    return _over_all_nodes(
        tree, query, key, value, lambda q, k, v: _by_rows(module, q, k, v, tree, rest)
    ), None


def tree_attention_flex(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree: PrefixTree | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """`tree_attention` by FlexAttention."""
    if tree is None:
        return _plain(module, query, key, value, attention_mask, rest)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: Any = compile_friendly_flex_attention(
            q, k, v, training=module.training, block_mask=tree.block_mask(rest.get("sliding_window")),
            scale=rest.get("scaling"), enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return found.transpose(1, 2)

    return _over_all_nodes(tree, query, key, value, attend), None


def _plain(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    rest: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """The attention of whole rows [B,heads,T,D]. Of a window transformers makes a mask for its own attentions alone."""
    inner, window = AttentionInterface()[INNER], rest.get("sliding_window")
    if attention_mask is None and key.shape[2] == query.shape[2]:
        return _in_windows(
            lambda q, k, v, m: inner(module, q, k, v, m, **rest)[0], query, key, value, window
        ), None
    return inner(module, query, key, value, attention_mask, **rest)


def _over_all_nodes(
    tree: PrefixTree,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Call `attend` with all nodes, which the ranks of a sequence group exchange before and after."""
    if tree.group is None:
        return attend(query, key, value)
    nodes = len(tree.token_ids)
    if key.shape[1] % tree.group.size:
        # Fewer key-value heads than ranks: each head of the queries gets its own copy.
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    found = attend(*(tree.group.to_heads(x)[:, :, :nodes] for x in (query, key, value)))
    padding = tree.group.size * query.shape[2] - nodes
    return tree.group.to_tokens(F.pad(found, (0, 0, 0, 0, 0, padding)))


def _by_rows(
    module: Any, query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, rest: dict[str, Any]
) -> Tensor:
    """Return the attention [1,N,heads,D] of the nodes, computed bucket by bucket of rows."""
    inner, window = AttentionInterface()[INNER], rest.get("sliding_window")
    layer = SimpleNamespace(
        training=module.training, is_causal=True, num_key_value_groups=query.shape[1] // key.shape[1]
    )
    found = []
    for bucket in tree.leaves:
        q, k, v = (
            x[0].transpose(0, 1).index_select(0, bucket.flatten()).unflatten(0, bucket.shape).transpose(1, 2)
            for x in (query, key, value)
        )
        out = _in_windows(lambda q, k, v, m: inner(layer, q, k, v, m, **rest)[0], q, k, v, window)
        found.append(out.flatten(0, 1))
    flat = found[0] if len(found) == 1 else torch.cat(found)
    return flat.index_select(0, tree.places)[None]


def _in_windows(
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
) -> Tensor:
    """Return [B,W,heads,D]: `attend` of rows [B,heads,W,D] where a token sees itself and the `window` - 1 before it.

    attend: is given a mask, or None for all that is before a token. A window that is shorter than the rows divides them
    into blocks of its length, and each block sees itself and the one before: the mask is [window,2*window], not [W,W],
    and what no token sees is not computed.
    """
    width = query.shape[2]
    if window is None or window >= width:
        return attend(query, key, value, None)
    first = attend(query[:, :, :window], key[:, :, :window], value[:, :, :window], None)
    blocks = -(-width // window) - 1
    padding = (0, 0, 0, (blocks + 1) * window - width)
    query, key, value = (F.pad(x, padding) if padding[-1] else x for x in (query, key, value))

    def divided(x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, window))

    def by_block(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    key, value = (
        by_block(torch.cat((divided(x[:, :, :-window]), divided(x[:, :, window:])), dim=3))
        for x in (key, value)
    )
    back = torch.arange(window, 2 * window, device=query.device)[:, None]
    back = back - torch.arange(2 * window, device=query.device)
    rest = attend(
        by_block(divided(query[:, :, window:])), key, value, ((back >= 0) & (back < window))[None, None]
    )
    return torch.cat((first, rest.unflatten(0, (-1, blocks)).flatten(1, 2)), dim=1)[:, :width]


def _block_mask(ends: Tensor, depths: Tensor, window: int | None) -> BlockMask:
    """Return the mask of all nodes: one sees another if that is above it, and fewer than `window` tokens back.

    Which blocks hold anything follows from the nodes' order, so nothing of the size [N,N] is made.
    """
    nodes = len(ends)
    starts = torch.arange(0, nodes, BLOCK, device=ends.device)
    stops = (starts + BLOCK).clamp(max=nodes)

    def extreme(x: Tensor, largest: bool) -> Tensor:
        padded = F.pad(x, (0, -nodes % BLOCK), value=0 if largest else nodes).view(-1, BLOCK)
        return padded.amax(1) if largest else padded.amin(1)

    before = starts[:, None] > starts
    some = (starts[:, None] == starts) | (before & (extreme(ends, True) > starts[:, None]))
    whole = before & (extreme(ends, False) >= stops[:, None])
    if window is not None:
        nearest = extreme(depths, False)[:, None] - extreme(depths, True)
        farthest = extreme(depths, True)[:, None] - extreme(depths, False)
        some, whole = some & (nearest < window), whole & (farthest < window)

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        above = (k <= q) & (q < ends[k])
        return above if window is None else above & (depths[q] - depths[k] < window)

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        order = chosen.int().argsort(dim=1, descending=True, stable=True)
        return chosen.sum(1, dtype=torch.int32)[None, None], order.int()[None, None]

    return BlockMask.from_kv_blocks(
        *listed(some & ~whole), *listed(whole), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(nodes, nodes)
    )


AttentionInterface.register(NAME, tree_attention)
AttentionInterface.register(FLEX, tree_attention_flex)


def run_trunk(trunk: Any, tree: PrefixTree, more: Mapping[str, Tensor] = MappingProxyType({})) -> Tensor:
    """Return the last hidden states [N,H] of the nodes that this rank computes, by default all.

    more: further arguments of the trunk, [N,...] of all nodes.
    """
    return _run(trunk, tree, tree, more)


def _run(
    trunk: Any,
    tree: PrefixTree,
    attend_over: PrefixTree | None,
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> Tensor:
    part = tree.part
    padding = part.stop - part.start - len(tree.token_ids[part])

    def own(x: Tensor) -> Tensor:
        return F.pad(x[part], (0, 0) * (x.ndim - 1) + (0, padding))[None]

    given = {"input_ids": own(tree.token_ids), "position_ids": own(tree.depths), "use_cache": False}
    further = {name: own(values) for name, values in more.items()}
    return trunk(**given, tree=attend_over, **further).last_hidden_state[0]


def uses_prefix_trees(model: Any) -> bool:
    """Return whether `enable_prefix_trees` succeeded for this model, or for the one it is the trunk of."""
    return model.config.get_text_config()._attn_implementation in (NAME, FLEX)


def windows(config: Any) -> list[int | None] | None:
    """Return how far back each layer of a model sees, None for all the way; None where attention is of another kind."""
    window = getattr(config, "sliding_window", None)
    kinds = (
        getattr(config, "layer_types", None)
        or ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    )
    known = {"full_attention": None, "sliding_attention": window}
    return [known[kind] for kind in kinds] if set(kinds) <= set(known) else None


def may_take_prefix_trees(model: Any) -> bool:
    """Return whether all layers of a causal LM have causal attention, in windows or not, through transformers'
    attention interface.

    Vision models do not take them: equal tokens of two rows may stand for different images.
    """
    if hasattr(model.config, "vision_config"):
        return False
    config = model.config.get_text_config()
    return (
        windows(config) is not None
        and config._attn_implementation == INNER
        and model._supports_attention_backend
    )


def enable_prefix_trees(model: Any, form: str = NAME) -> bool:
    """Make a causal LM of transformers compute prefix trees; return False and leave it unchanged where it cannot.

    form: `NAME`, or `FLEX` for a model on a GPU.

    It can when `may_take_prefix_trees` says so, when a probe with a small tree gives the hidden states of the plain
    rows, and when each layer tells its attention of the window that the configuration says it has.
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
        agrees = _probe_agrees(model, tree, plain.float(), counts.to(model.device))
    model.train(training)
    model.set_attn_implementation(form if agrees else INNER)
    return agrees


def _probe_agrees(model: Any, tree: PrefixTree, plain: Tensor, counts: Tensor) -> bool:
    """Compare with the hidden states `plain` [B,T,H] of the rows, where `counts` [B,T]."""
    found: list[int | None] = []

    def noting(*args: Any, **rest: Any) -> tuple[Tensor, Tensor | None]:
        found.append(rest.get("sliding_window"))
        return tree_attention(*args, **rest)

    def distance(given: PrefixTree | None) -> float:
        return float((_run(model.base_model, tree, given).float()[tree.rows] - plain)[counts].norm())

    AttentionInterface.register(NAME, noting)
    model.set_attn_implementation(NAME)
    try:
        near = distance(tree)
        return found == windows(model.config.get_text_config()) and near < PROBE_ERROR_RATIO * distance(None)
    except TypeError:
        # The model does not pass keyword arguments on to its attention.
        return False
    finally:
        AttentionInterface.register(NAME, tree_attention)
