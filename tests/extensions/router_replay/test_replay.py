"""Forward passes through experts that are given: the same ones change nothing, others are used and get gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.extensions.router_replay.replay import FORMS, Replayed
from asyncrl.extensions.router_replay.token_extra import OWN_CHOICE
from asyncrl.train.models.loading import load_policy
from asyncrl.train.models.prefix_tree import tree_of, uses_prefix_trees
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from tests.models import EXPERTS, save_deepseek, save_experts
from tests.train.factories import group
from tests.train.gradients import INNER

REPLAY = (Replayed(),)
SHAPE = (4, 24, 2, 2)
"""Rows, tokens, layers and experts of a token."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with a model of each family."""
    folder = tmp_path_factory.mktemp("families")
    for family in EXPERTS:
        save_experts(family, folder / family)
    save_deepseek(folder / "deepseek_v3")
    return folder


@pytest.fixture(scope="module")
def qwen(folders):
    return load_policy(str(folders / "qwen3_moe"), "float32", changes=REPLAY)


@pytest.fixture
def rows():
    """Token ids and mask of rows of which two begin alike."""
    ids = torch.randint(5, 500, SHAPE[:2], generator=torch.Generator().manual_seed(1))
    ids[1, :16] = ids[0, :16]
    mask = torch.zeros(SHAPE[:2], dtype=torch.bool)
    mask[:, 8:] = True
    return ids, mask


def random_experts(seed=0):
    """Two different experts for each token and layer, in any order."""
    scores = torch.rand(*SHAPE[:3], 8, generator=torch.Generator().manual_seed(seed))
    return scores.topk(2).indices.to(torch.int16)


def logp(policy, rows, experts=None):
    with torch.no_grad():
        return policy(*rows, 1.0, extras=extras(experts))["logp"]


def extras(experts):
    return {} if experts is None else {"routed_experts": experts}


def own_choice(policy, rows):
    """What the routers choose by themselves [B,T,layers,K]."""
    found = torch.full(SHAPE, OWN_CHOICE, dtype=torch.int16)
    routers = {
        name: module
        for name, module in policy.model.named_modules()
        if type(module).__name__.lower().endswith("router")
    }

    def keep(index):
        def hook(module, args, output):
            found[:, :, index] = output[2].view(*SHAPE[:2], 2)

        return hook

    hooks = [
        module.register_forward_hook(keep(int(name.split("layers.")[1].split(".")[0])))
        for name, module in routers.items()
    ]
    with torch.no_grad():
        policy.model.base_model(input_ids=rows[0], use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def test_gate_weights_are_those_of_the_given_experts():
    logits = torch.tensor([[0.0, np.log(2.0), np.log(3.0), np.log(4.0)]], dtype=torch.float32)
    experts = torch.tensor([[2, 1]])
    router = torch.nn.Module()
    router.norm_topk_prob, router.routed_scaling_factor = True, 2.5
    weights = [form(logits, experts, router)[0].tolist() for form in FORMS]
    # exp(logits) is 1, 2, 3, 4, and their sigmoids are 1/2, 2/3, 3/4, 4/5.
    assert weights[0] == pytest.approx([3 / 5, 2 / 5])
    assert weights[1] == pytest.approx([3 / 10, 2 / 10])
    assert weights[2] == pytest.approx([2.5 * 9 / 17, 2.5 * 8 / 17])


@pytest.mark.parametrize("family", [*EXPERTS, "deepseek_v3"])
def test_a_models_own_choice_changes_nothing_and_another_one_is_taken(folders, rows, family):
    policy = load_policy(str(folders / family), "float32", changes=REPLAY)
    own, plain = own_choice(policy, rows), logp(policy, rows)
    assert bool((own != OWN_CHOICE).any())
    # The order of a token's experts says nothing.
    torch.testing.assert_close(logp(policy, rows, own.flip(-1)), plain, atol=1e-5, rtol=0)
    partly = torch.where(torch.arange(SHAPE[1])[:, None, None] < 12, own, OWN_CHOICE)
    torch.testing.assert_close(logp(policy, rows, partly), plain, atol=1e-5, rtol=0)
    other = logp(policy, rows, random_experts())
    assert float((other - plain)[rows[1]].abs().mean()) > 0.05
    torch.testing.assert_close(logp(policy, rows), plain, atol=0, rtol=0)


def test_rounding_moves_tokens_to_other_experts_and_replay_keeps_them(folders, qwen, rows):
    """What float32 computed, seen by a bfloat16 model."""
    coarse = load_policy(str(folders / "qwen3_moe"), "bfloat16", changes=REPLAY)
    ids = torch.randint(5, 500, (5, *SHAPE[:2]), generator=torch.Generator().manual_seed(0))
    batches = [(part, torch.ones_like(part, dtype=torch.bool)) for part in ids]
    errors = {"without": [], "with": []}
    for batch in batches:
        exact = logp(qwen, batch)
        for name, experts in (("without", None), ("with", own_choice(qwen, batch))):
            errors[name].append((logp(coarse, batch, experts) - exact).abs())
    without, with_replay = (torch.cat(errors[name]) for name in ("without", "with"))
    assert float(without.max()) > 5 * float(with_replay.max())
    assert float(without.mean()) > 1.3 * float(with_replay.mean())


def gradient(policy, rows, experts):
    policy.zero_grad()
    found = policy(*rows, 1.0, extras=extras(experts))["logp"]
    loss = (found * torch.linspace(-1.0, 1.0, SHAPE[1])).sum()
    # Another forward pass in between must not matter to what is computed again.
    logp(policy, rows, random_experts(7))
    loss.backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters()}


def test_gradients_are_the_same_with_shared_prefixes_and_with_checkpointing(folders, qwen, rows):
    experts = random_experts()
    experts[1, :6] = experts[0, :6]
    # Rows that share 16 tokens and the experts of six.
    assert len(tree_of(*rows).token_ids) == 4 * 24 - 16
    assert len(tree_of(*rows, [experts]).token_ids) == 4 * 24 - 6
    checkpointed = load_policy(str(folders / "qwen3_moe"), "float32", True, changes=REPLAY)
    assert uses_prefix_trees(qwen.model)
    shared = gradient(qwen, rows, experts)
    again = gradient(checkpointed, rows, experts)
    checkpointed.model.set_attn_implementation(INNER)
    plain = gradient(checkpointed, rows, experts)
    for name, expected in plain.items():
        for found in (shared, again):
            assert float((found[name] - expected).norm()) <= 1e-5 * float(expected.norm()), name
    # Gates learn although the choice is given.
    assert all(
        float(plain[f"model.model.layers.{layer}.mlp.gate.weight"].norm()) > 1e-3 for layer in range(2)
    )


def test_a_model_without_experts_is_refused(tiny_model):
    with pytest.raises(ConfigError, match="has no routers; set it to false"):
        load_policy(tiny_model, "float32", changes=REPLAY)


def test_recorded_experts_are_padded_and_their_lack_is_an_error(qwen):
    bare = group("t", [0.0, 1.0])
    first, second = (
        replace(t, extras={"routed_experts": np.full((t.num_tokens - 1, 2, 2), 6 + i, np.uint8)})
        for i, t in enumerate(bare.trajectories)
    )
    batch = build_step_batch([replace(bare, trajectories=(first, second))], 0, 0)
    padded = pad_rows(batch, [0, 1]).extras["routed_experts"]
    assert padded.dtype == torch.int16 and padded.shape == (2, 17, 2, 2)
    assert padded[0, :, 0, 0].tolist() == [6] * 15 + [OWN_CHOICE] * 2
    assert padded[1, :, 1, 1].tolist() == [7] * 16 + [OWN_CHOICE]
    assert pad_rows(build_step_batch([bare], 0, 0), [0]).extras == {}
    (replay,) = qwen.inputs
    replay.check(second)
    for wrong, message in (
        (
            None,
            "episode 1: the engine reported the experts of 0 tokens, and 16 come before the last one sampled",
        ),
        (second.extras["routed_experts"][:-1], "the experts of 15 tokens, and 16 come"),
        (
            second.extras["routed_experts"] + np.uint8(1),
            r"8 experts and takes 2 of them, but .* \[16, 2, 2\] of up to 8",
        ),
        (second.extras["routed_experts"][:, :1], r"has 2 layers, .* reported \[16, 1, 2\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            replay.check(replace(second, extras={"routed_experts": wrong}))
