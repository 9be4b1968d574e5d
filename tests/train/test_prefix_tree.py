"""A shared prefix is computed once, with the results and gradients of the rows by themselves."""

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from asyncrl.config import LoraConfig
from asyncrl.extensions.critic.part import CriticModel
from asyncrl.extensions.critic.value_head import HEAD, new_head
from asyncrl.extensions.lora.adapter import adapters
from asyncrl.train.models import prefix_tree
from asyncrl.train.models.loading import load_policy
from asyncrl.train.models.prefix_tree import (
    FLEX,
    INNER,
    NAME,
    build_tree,
    enable_prefix_trees,
    tree_attention,
    tree_attention_flex,
    tree_of,
)

SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8,
}  # fmt: skip


def padded(rows):
    width = max(map(len, rows))
    return np.array([[*row, *[0] * (width - len(row))] for row in rows]), np.array([len(row) for row in rows])


def test_a_tree_has_a_node_for_each_token_after_each_prefix():
    rows = [[5, 6, 7], [5, 6, 8, 9], [5, 6], [5, 6, 8, 9], [4]]
    tree = build_tree(*padded(rows))
    assert len(tree.token_ids) == 6
    assert sorted(tree.token_ids.tolist()) == [4, 5, 6, 7, 8, 9]
    assert sum(map(len, tree.leaves)) == 3
    a, b, c, d, e = tree.rows.tolist()
    assert a[:2] == b[:2] == c[:2] and b == d and len({a[2], b[2], b[3], e[0], *a[:2]}) == 6
    assert [tree.depths[node] for node in b] == [0, 1, 2, 3]
    assert [tree.parents[node] for node in b] == [b[0], *b[:3]]


def test_equal_tokens_after_different_prefixes_are_different_nodes():
    tree = build_tree(*padded([[5, 7, 7], [6, 7, 7]]))
    assert len(tree.token_ids) == 6


@settings(max_examples=200)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12))
def test_every_prefix_is_one_node_at_one_place(rows):
    token_ids, lengths = padded(rows)
    tree = build_tree(token_ids, lengths)
    beginnings = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    assert len(tree.token_ids) == len(beginnings)
    named = {int(tree.rows[b, t]): tuple(row[: t + 1]) for b, row in enumerate(rows) for t in range(len(row))}
    assert sorted(named) == list(range(len(beginnings))) and set(named.values()) == beginnings
    for node, beginning in named.items():
        assert (int(tree.token_ids[node]), int(tree.depths[node])) == (beginning[-1], len(beginning) - 1)
        assert named[int(tree.parents[node])] == (beginning[:-1] or beginning)
    flat = torch.cat([bucket.flatten() for bucket in tree.leaves])
    assert flat[tree.places].tolist() == list(range(len(beginnings)))
    below = [
        [other for other, longer in named.items() if longer[: len(one)] == one]
        for one in map(named.get, range(len(named)))
    ]
    assert [list(range(node, end)) for node, end in enumerate(tree.ends.tolist())] == list(map(sorted, below))
    assert sum(map(len, tree.leaves)) == len(
        {r for r in map(tuple, rows) if not any(o[: len(r)] == r and o != r for o in map(tuple, rows))}
    )


def test_what_comes_after_the_last_sampled_token_is_left_out():
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 9]])
    mask = torch.tensor([[False, True, False, False], [False, False, True, False]])
    assert sorted(tree_of(ids, mask).token_ids.tolist()) == [5, 6, 9]
    assert len(tree_of(ids, torch.zeros_like(mask)).token_ids) == 1


@pytest.fixture
def rows():
    """Rows of three groups with prompts of their own; within a group they part here and there, or not at all."""
    rng = np.random.default_rng(0)
    ids = torch.zeros(12, 24, dtype=torch.long)
    mask = torch.zeros(12, 24, dtype=torch.bool)
    for row in range(12):
        like = np.random.default_rng(row // 4).integers(5, 40, 24)
        part, length = rng.integers(6, 24), rng.integers(8, 25)
        ids[row, :length] = torch.from_numpy(np.r_[like[:part], rng.integers(5, 40, 24 - part)][:length])
        mask[row, 5:length] = torch.from_numpy(rng.random(length - 5) < 0.6)
        mask[row, length - 1] = True
    return ids, mask


def both(policy):
    """Return the policy and a copy of it that computes every row by itself."""
    plain = copy.deepcopy(policy)
    plain.model.set_attn_implementation(INNER)
    return policy, plain


@pytest.mark.parametrize("lora", [LoraConfig(), LoraConfig(rank=4)], ids=["all weights", "adapter"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_log_probabilities_and_gradients_are_those_of_rows_by_themselves(
    tiny_model, rows, lora, checkpointing
):
    ids, mask = rows
    found = []
    for policy in both(
        load_policy(tiny_model, "float32", checkpointing, heads={HEAD: new_head}, changes=adapters(lora, 0))
    ):
        out = policy(ids, mask, 0.7, ("entropy", "sum_pi_squared", "values"))
        weight = torch.linspace(-1, 1, ids.numel()).view_as(out["logp"])
        (out["logp"] * weight + out["entropy"]).sum().add(out["values"].sum()).backward()
        grads = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
        found.append((out, grads))
    (shared, shared_grads), (plain, plain_grads) = found
    assert shared.keys() == plain.keys() >= {"logp", "entropy", "sum_pi_squared", "values", "end_values"}
    assert shared_grads.keys() == plain_grads.keys()
    for name in plain:
        torch.testing.assert_close(shared[name], plain[name], atol=2e-5, rtol=0)
    for name in plain_grads:
        torch.testing.assert_close(shared_grads[name], plain_grads[name], atol=2e-4, rtol=1e-4)


def test_a_critics_values_are_those_of_rows_by_themselves(tiny_model, rows):
    ids, mask = rows
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    critic = CriticModel(model)
    torch.nn.init.normal_(critic.value_head.weight)
    plain = critic(ids, mask)
    assert enable_prefix_trees(model)
    shared = critic(ids, mask)
    assert shared.keys() == plain.keys()
    for name, value in shared.items():
        assert value.abs().max() > 0.1
        torch.testing.assert_close(value, plain[name], atol=1e-5, rtol=0)


def test_a_model_runs_over_the_nodes_alone(tiny_model, rows):
    ids, mask = rows
    policy = load_policy(tiny_model, "float32")
    seen = []
    policy.model.base_model.layers[0].mlp.register_forward_hook(
        lambda _, given, out: seen.append(given[0].shape[:-1])
    )
    policy(ids, mask, 1.0)
    lengths = [int(row.nonzero().max()) + 1 for row in mask]
    beginnings = {
        tuple(r[:n].tolist()) for r, end in zip(ids, lengths, strict=True) for n in range(1, end + 1)
    }
    assert seen == [(1, len(beginnings))]
    assert len(beginnings) < sum(lengths) * 0.8


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SIZES),
        LlamaConfig(**SIZES),
        Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2),
        MistralConfig(**SIZES, sliding_window=None),
        MistralConfig(**SIZES, sliding_window=8),
        MistralConfig(**SIZES, sliding_window=4096),
        Qwen3Config(
            **SIZES, layer_types=["full_attention", "sliding_attention"], sliding_window=8, use_sliding_window=True
        ),
    ],
    ids=["qwen3", "llama", "mixture of experts", "mistral", "windows", "wide windows", "some windows"],
)  # fmt: skip
def test_models_with_causal_attention_use_trees_windows_or_not(config):
    model = AutoModelForCausalLM.from_config(config)
    assert enable_prefix_trees(model)
    assert model.config._attn_implementation == NAME
    assert model.training


@pytest.mark.parametrize("form", [NAME, FLEX])
def test_whole_rows_are_read_through_their_windows(form):
    """A caller that has no tree gets what the model itself computes."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MistralConfig(**SIZES, sliding_window=8)).eval()
    token_ids = torch.arange(40).remainder(SIZES["vocab_size"])[None]
    with torch.no_grad():
        plain = model(token_ids, use_cache=False).logits
        assert enable_prefix_trees(model, form)
        torch.testing.assert_close(model(token_ids, use_cache=False).logits, plain)


def test_a_layer_that_does_not_say_its_window_leaves_the_model_unchanged(monkeypatch):
    model = AutoModelForCausalLM.from_config(MistralConfig(**SIZES, sliding_window=4096))
    monkeypatch.setattr(prefix_tree, "windows", lambda config: [4096, None])
    assert not enable_prefix_trees(model)
    assert model.config._attn_implementation == INNER


def test_attention_of_another_kind_leaves_the_model_unchanged():
    config = Qwen3Config(**SIZES)
    config.layer_types = ["full_attention", "chunked_attention"]
    assert prefix_tree.windows(config) is None


@pytest.mark.parametrize(("window", "width"), [(5, 23), (8, 32), (8, 33), (1, 6), (7, 7), (None, 9)])
def test_rows_longer_than_the_window_are_computed_in_blocks_of_its_length(window, width):
    """What a dense mask gives, of which no part of the size [W,W] is made."""
    query, key, value = (torch.randn(2, heads, width, 4, requires_grad=True) for heads in (4, 2, 2))
    masked = []

    def attend(q, k, v, mask):
        masked.append(0 if mask is None else mask.numel())
        found = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
        return found.transpose(1, 2)

    found = prefix_tree._in_windows(attend, query, key, value, window)
    back = torch.arange(width)[:, None] - torch.arange(width)
    dense = (back >= 0) & (back < (window or width))
    expected = F.scaled_dot_product_attention(query, key, value, dense, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), (query, key, value)),
        torch.autograd.grad((expected * weights).sum(), (query, key, value)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    assert masked == ([0] if window is None or window >= width else [0, 2 * window**2])


@pytest.mark.parametrize("window", [None, 5, 200])
@pytest.mark.parametrize("num_heads", [(4, 4), (4, 2)], ids=["a key for each head", "keys in groups"])
def test_flex_attention_gives_what_a_dense_mask_does(monkeypatch, window, num_heads):
    """FlexAttention has no backward pass on CPU, so its results are compared here, over several blocks."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 40, 150) for _ in range(2)]
    kept = [(0, 150, 90), (0, 100, 120), (0, 100, 0), (1, 150, 60), (1, 20, 30)]
    tree = build_tree(*padded([[*prompts[p][:n], *rng.integers(5, 40, more)] for p, n, more in kept]))
    nodes = len(tree.token_ids)
    assert nodes > 3 * prefix_tree.BLOCK
    numbers = torch.arange(nodes)
    back = tree.depths[:, None] - tree.depths
    dense = (numbers <= numbers[:, None]) & (numbers[:, None] < tree.ends)
    dense &= back < (window or nodes)
    torch.manual_seed(0)
    query = torch.randn(1, num_heads[0], nodes, 16)
    key, value = torch.randn(2, 1, num_heads[1], nodes, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense, enable_gqa=True
    ).transpose(1, 2)
    layer = SimpleNamespace(training=False, num_key_value_groups=num_heads[0] // num_heads[1], is_causal=True)
    rest = {"tree": tree, "sliding_window": window, "scaling": None}
    by_rows, _ = tree_attention(layer, query, key, value, None, dropout=0.0, **rest)
    torch.testing.assert_close(by_rows, expected, atol=1e-5, rtol=0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        monkeypatch.setattr(prefix_tree, "compile_friendly_flex_attention", uncompiled)
        found, _ = tree_attention_flex(layer, query, key, value, None, **rest)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    computed, needed = tree.block_mask(window).to_dense()[0, 0].bool(), _blocks_of(dense)
    assert not (needed & ~computed).any()
    if window is None:
        assert torch.equal(computed, needed)
        assert not needed.tril().equal(torch.ones_like(needed).tril())


def uncompiled(query, key, value, training, **rest):
    """FlexAttention without the compiler, which takes a minute and gives the same."""
    return flex_attention(query, key, value, **rest)


def _blocks_of(dense):
    size = prefix_tree.BLOCK
    padding = -len(dense) % size
    whole = torch.nn.functional.pad(dense, (0, padding, 0, padding))
    return whole.unflatten(1, (-1, size)).unflatten(0, (-1, size)).any(3).any(1)


def test_a_model_that_passes_nothing_on_to_its_attention_is_unchanged(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    trunk = model.base_model
    forward = trunk.forward
    trunk.forward = lambda tree=None, **given: forward(**given)
    assert not enable_prefix_trees(model)
    assert model.config._attn_implementation == INNER


def test_an_attention_chosen_by_hand_is_kept(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")
    assert not enable_prefix_trees(model)
    assert model.config._attn_implementation == "eager"


def test_a_saved_model_does_not_name_the_attention(tiny_model, tmp_path):
    load_policy(tiny_model, "float32").model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == INNER
