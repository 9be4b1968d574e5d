"""The policy module computes exactly the log-probabilities of the plain model, only where they are needed."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from asyncrl.errors import ConfigError
from asyncrl.extensions.critic.value_head import HEAD, new_head
from asyncrl.extensions.distillation.losses import full_kl
from asyncrl.extensions.distillation.part import compared_with
from asyncrl.train.models import token_scores
from asyncrl.train.models.loading import load_frozen, load_policy
from asyncrl.train.models.policy import PolicyModel, check_logits, probe, when_it_computes
from asyncrl.train.models.prefix_tree import INNER, uses_prefix_trees
from asyncrl.train.models.tiny_model import build_model
from tests.models import save_dense


@pytest.fixture(scope="module", params=["shared prefixes", "plain rows"])
def policy(tiny_model, request):
    policy = load_policy(tiny_model, "float32")
    assert uses_prefix_trees(policy.model)
    if request.param == "plain rows":
        policy.model.set_attn_implementation(INNER)
    return policy


@pytest.fixture(scope="module")
def other_model(tiny_model, tmp_path_factory):
    """A model with another trunk and the same vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    vocab_size = load_policy(tiny_model, "float32").model.config.vocab_size
    build_model(vocab_size, 32, 1, 2, 64, 0, seed=1).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def rows(policy):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, policy.model.config.vocab_size, (3, 20), generator=generator)
    mask = torch.rand(3, 20, generator=generator) < 0.4
    mask[:, 0] = False
    return ids, mask


def plain_log_softmax(policy, ids, temperature):
    return torch.log_softmax(policy.model(ids).logits[:, :-1].float() / temperature, -1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_plain_model(policy, rows, temperature):
    ids, mask = rows
    with torch.no_grad():
        logp = policy(ids, mask, temperature)["logp"]
        plain = plain_log_softmax(policy, ids, temperature).gather(-1, ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(logp[:, 1:][mask[:, 1:]], plain[mask[:, 1:]], atol=1e-6, rtol=0)
    assert (logp[~mask] == 0).all()


def test_entropy_is_that_of_the_whole_distribution(policy, rows):
    ids, mask = rows
    with torch.no_grad():
        entropy = policy(ids, mask, 0.5, ("entropy",))["entropy"]
        plain = plain_log_softmax(policy, ids, 0.5)
    expected = -(plain.exp() * plain).sum(-1)
    torch.testing.assert_close(entropy[:, 1:][mask[:, 1:]], expected[mask[:, 1:]], atol=1e-5, rtol=0)
    assert (entropy[~mask] == 0).all()


def test_padding_on_the_right_changes_nothing(policy, rows):
    ids, mask = rows
    padded = torch.cat([ids[:1, :12], torch.full((1, 8), 7)], dim=1)
    padded_mask = torch.cat([mask[:1, :12], torch.zeros(1, 8, dtype=torch.bool)], dim=1)
    with torch.no_grad():
        alone = policy(ids[:1, :12], mask[:1, :12], 1.0)["logp"]
        together = policy(torch.cat([padded, ids[1:]]), torch.cat([padded_mask, mask[1:]]), 1.0)["logp"]
    torch.testing.assert_close(together[0, :12], alone[0], atol=2e-6, rtol=0)


def test_the_first_token_has_no_context_and_is_never_scored(policy, rows):
    ids, mask = rows
    mask = mask.clone()
    mask[:, 0] = True
    with torch.no_grad():
        logp = policy(ids, mask, 1.0)["logp"]
    assert (logp[:, 0] == 0).all()


def test_the_chunk_size_changes_nothing(policy, rows, monkeypatch):
    with torch.no_grad():
        whole = policy(*rows, 1.0, ("entropy",))
        monkeypatch.setattr(token_scores, "CHUNK_LOGITS", 3 * policy.model.config.vocab_size)
        pieces = policy(*rows, 1.0, ("entropy",))
    assert set(whole) == set(pieces) == {"logp", "entropy"}
    for name in whole:
        torch.testing.assert_close(whole[name], pieces[name], atol=1e-5, rtol=0)


def saved_bytes(policy, rows, chunk_tokens, monkeypatch):
    """Return the bytes that autograd keeps for the backward pass, less those of weights."""
    monkeypatch.setattr(token_scores, "CHUNK_LOGITS", chunk_tokens * policy.model.config.vocab_size)
    weights = {parameter.data_ptr() for parameter in policy.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor):
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = policy(*rows, 0.7, ("entropy", "sum_pi_squared"))
    assert outputs["logp"].requires_grad
    return sum(kept.values())


def test_nothing_of_the_size_of_tokens_times_vocabulary_is_kept(policy, rows, monkeypatch):
    whole = saved_bytes(policy, rows, 10**6, monkeypatch)
    logits = int(rows[1].sum()) * policy.model.config.vocab_size * 4
    assert whole - saved_bytes(policy, rows, 3, monkeypatch) > 0.9 * logits


def test_values_are_read_one_position_before_the_token_and_at_the_last_sampled_one(tiny_model):
    policy = load_policy(tiny_model, "float32", heads={HEAD: new_head})
    torch.nn.init.normal_(policy.value_head.weight)
    ids = torch.arange(10, 20)[None]
    mask = torch.tensor([[0, 0, 0, 1, 1, 0, 1, 0, 0, 0]], dtype=torch.bool)
    with torch.no_grad():
        found = policy(ids, mask, 1.0, ("values",))
        hidden = policy.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        plain = policy.value_head(hidden)[0, :, 0]
    torch.testing.assert_close(found["values"][0, [3, 4, 6]], plain[[2, 3, 5]])
    assert found["values"][0, ~mask[0]].abs().max() == 0
    torch.testing.assert_close(found["end_values"], plain[[6]])


def test_detached_values_send_no_gradient_into_the_trunk(tiny_model, rows):
    policy = load_policy(tiny_model, "float32", heads={HEAD: new_head})
    torch.nn.init.normal_(policy.value_head.weight)
    policy(*rows, 1.0, ("detached_values",))["values"].sum().backward()
    assert policy.value_head.weight.grad.abs().max() > 0
    assert all(p.grad is None or not p.grad.any() for p in policy.model.parameters())


def test_sums_of_squared_probabilities_are_those_of_the_plain_model(policy, rows):
    ids, mask = rows
    with torch.no_grad():
        found = policy(ids, mask, 0.7, ("sum_pi_squared",))
        plain = plain_log_softmax(policy, ids, 0.7)
    picked = mask[:, 1:]
    expected = plain.exp().square().sum(-1)[picked]
    torch.testing.assert_close(found["sum_pi_squared"][:, 1:][picked], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("free_gib", "chunks"), [(0, 38), (3, 38), (4, 38), (9, 19), (16, 10), (60, 10)])
def test_a_gpu_with_room_computes_the_head_in_fewer_chunks(policy, monkeypatch, free_gib, chunks):
    """16,384 tokens at a vocabulary of 152,000: each chunk reads and writes the whole gradient of the projection."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(token_scores, "free_bytes", lambda device: free_gib * 2**30)
    tokens = token_scores.logits_at_once(torch.device("cuda")) // 152_000
    assert -(-16_384 // tokens) == chunks
    # At its peak a chunk takes no more than a quarter of what is free, unless there is hardly anything.
    assert tokens * 152_000 * 16 <= max(free_gib / 4, 1) * 2**30


def test_the_head_is_computed_as_often_as_its_chunks_say(policy, rows, monkeypatch):
    vocab_size, projected = policy.model.config.vocab_size, []
    head = policy.model.lm_head.forward
    project = head.project
    monkeypatch.setattr(head, "project", lambda states: projected.append(len(states)) or project(states))
    for most, expected in ((3, 3), (6, 6)):
        projected.clear()
        monkeypatch.setattr(token_scores, "logits_at_once", lambda device, most=most: most * vocab_size)
        policy(*rows, 1.0)["logp"].sum().backward()
        assert max(projected) == expected
        # Forward, and again backward.
        tokens = sum(projected) // 2
        assert tokens > most
        assert len(projected) == 2 * -(-tokens // most)


@pytest.mark.parametrize("chunk_tokens", [1000, 3])
@pytest.mark.parametrize("direction", ["reverse", "forward", "jsd"])
def test_the_divergence_from_a_teacher_and_its_gradient_are_those_of_whole_logits(
    policy, rows, other_model, direction, chunk_tokens, monkeypatch
):
    ids, mask = rows
    ids[2] = ids[1]
    vocab_size = policy.model.config.vocab_size
    monkeypatch.setattr(token_scores, "CHUNK_LOGITS", chunk_tokens * vocab_size)
    teacher = load_frozen(other_model, "float32")
    compared = compared_with(
        teacher(ids, mask, 1.0, ("states",))["states"], teacher.model.lm_head.forward.logits, direction
    )
    found = policy(ids, mask, 0.7, (), compared)["teacher_kl"]
    logits = policy.model(ids).logits[:, :-1] / 0.7, teacher.model(ids).logits[:, :-1].detach() / 0.7
    expected = full_kl(*logits, direction) * mask[:, 1:]
    assert expected.max() > 1e-3
    torch.testing.assert_close(found[:, 1:], expected, atol=1e-6, rtol=1e-5)
    weight = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    parameters = list(policy.parameters())
    ours = torch.autograd.grad((found[:, 1:] * weight).sum(), parameters)
    plain = torch.autograd.grad((expected * weight).sum(), parameters)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_the_gradient_is_that_of_the_plain_model(policy, rows):
    ids, mask = rows
    parameters = list(policy.parameters())
    ours = torch.autograd.grad(policy(ids, mask, 1.0)["logp"].sum(), parameters)
    plain = plain_log_softmax(policy, ids, 1.0).gather(-1, ids[:, 1:, None]).squeeze(-1)
    expected = torch.autograd.grad(plain[mask[:, 1:]].sum(), parameters)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_fully_masked_row_takes_part_in_backward_with_a_zero_gradient(policy):
    logp = policy(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.bool), 1.0)["logp"]
    assert logp.tolist() == [[0.0, 0.0]]
    for gradient in torch.autograd.grad(logp.sum(), list(policy.parameters()), allow_unused=True):
        assert gradient is None or not gradient.any()


SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=2.0),
        GraniteConfig(**SIZES, logits_scaling=4.0),
        CohereConfig(**SIZES, logit_scale=0.5),
    ],
    ids=["bounded", "divided", "scaled"],
)
def test_what_a_model_does_after_its_projection_is_done(config, tmp_path):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), "float32")
    ids, mask = torch.arange(2, 32).view(2, 15), torch.ones(2, 15, dtype=torch.bool)
    with torch.no_grad():
        found = policy(ids, mask, 1.0)["logp"]
        expected = model(ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(found[:, 1:], expected, atol=1e-5, rtol=0)


class Doubling(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        found.logits = found.logits * 2
        return found


def test_a_model_whose_logits_are_made_otherwise_is_refused():
    policy = PolicyModel(Doubling(LlamaConfig(**SIZES)))
    with pytest.raises(
        ConfigError, match=r"^model\.path: here: the logits of Doubling are not its lm_head's"
    ):
        check_logits(policy, "here")


def test_attention_with_capped_logits_is_computed_with_its_cap(tmp_path):
    """Gemma 2's; transformers' default attention leaves the cap out."""
    save_dense("gemma2", tmp_path)
    token_ids = torch.arange(2, 32)[None]
    with torch.no_grad():
        ours = load_frozen(str(tmp_path), "float32").model(token_ids).logits
        eager = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")(token_ids).logits
    torch.testing.assert_close(ours, eager, atol=1e-5, rtol=0)


def test_a_loaded_model_is_probed_where_it_computes_and_stays_there(monkeypatch):
    seen = []
    module = torch.nn.Linear(2, 2)
    monkeypatch.setattr("asyncrl.train.models.policy.computing_device", lambda: torch.device("meta"))
    when_it_computes(module, module, lambda: seen.append(module.weight.device.type))
    assert seen == ["meta"]
    assert module.weight.device.type == "meta"


def test_a_model_that_ranks_have_parts_of_is_left_to_its_engine(monkeypatch):
    seen = []
    module = torch.nn.Linear(2, 2)
    module.weight.ds_id = 0
    monkeypatch.setattr("asyncrl.train.models.policy.computing_device", lambda: torch.device("meta"))
    when_it_computes(module, module, lambda: seen.append("probed"))
    assert (seen, module.weight.device.type) == ([], "cpu")
    probe(module)
    assert seen == ["probed"]
