"""Activations are computed again in the backward pass where the recipe asks for it, and nothing is random."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

from asyncrl.config import LoraConfig
from asyncrl.extensions.critic.part import load_critic
from asyncrl.extensions.lora.adapter import adapters
from asyncrl.train.models.loading import load_frozen, load_policy

LORA = LoraConfig(rank=4)


def load(kind: str, model: str, checkpointing: bool):
    if kind == "critic":
        return load_critic(model, "float32", checkpointing)
    return load_policy(
        model, "float32", checkpointing, changes=adapters(LORA, 0) if kind == "adapter" else ()
    )


def run(trained, token_ids, mask):
    """Return a sum of what the model computes."""
    if hasattr(trained.model, "lm_head"):
        return trained(token_ids, mask, 1.0)["logp"].sum()
    torch.nn.init.ones_(trained.value_head.weight)
    return trained(token_ids, mask)["values"].sum()


@pytest.mark.parametrize("kind", ["policy", "adapter", "critic"])
@pytest.mark.parametrize(("checkpointing", "calls"), [(False, 1), (True, 2)], ids=["kept", "recomputed"])
def test_each_layer_runs_again_in_the_backward_pass_alone(tiny_model, kind, checkpointing, calls):
    trained = load(kind, tiny_model, checkpointing)
    seen: list[str] = []
    for name, module in trained.named_modules():
        if name.endswith(".mlp"):
            module.register_forward_pre_hook(lambda *_, name=name: seen.append(name))
    token_ids, mask = torch.arange(10, 30).view(2, 10), torch.ones(2, 10, dtype=torch.bool)
    with torch.no_grad():
        run(trained, token_ids, mask)
    layers = set(seen)
    assert len(layers) == len(seen) == 2
    seen.clear()
    run(trained, token_ids, mask).backward()
    assert {name: seen.count(name) for name in layers} == dict.fromkeys(layers, calls)


def test_models_that_are_only_read_keep_nothing(tiny_model):
    assert not load_frozen(tiny_model, "float32").training


SIZES = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 0}
RANDOM = {
    "dropout": GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, **SIZES)),
    "attention dropout and a router's jitter": MixtralForCausalLM(
        MixtralConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            num_local_experts=4, attention_dropout=0.3, router_jitter_noise=0.3, sliding_window=None, **SIZES,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_a_model_made_with_dropout_is_trained_without(tmp_path, name, checkpointing):
    RANDOM[name].save_pretrained(tmp_path)
    trained = load_policy(str(tmp_path), "float32", checkpointing)
    token_ids, mask = torch.arange(2, 32).view(2, 15), torch.ones(2, 15, dtype=torch.bool)
    one, other = (trained(token_ids, mask, 1.0)["logp"] for _ in range(2))
    assert torch.equal(one, other)
    assert one.requires_grad
    plain = RANDOM[name].eval()(token_ids).logits.log_softmax(-1)[:, :-1]
    expected = plain.gather(-1, token_ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(one[:, 1:], expected, atol=1e-5, rtol=0)
