"""Adapters on one model: their numbers are those of a plain forward pass, and none disturbs another."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.messages import AdamParams
from asyncrl.extensions.tinker.policies import AdapterSettings, BaseModel
from asyncrl.extensions.tinker.wire import read_request
from tests.extensions.tinker.form import forward_backward, text_row

SETTINGS = AdapterSettings(rank=4, seed=1)
TEXTS = ([5, 6, 7, 8, 9], [5, 9, 3], [4, 4, 4, 8, 2, 6, 7])


@pytest.fixture(scope="module")
def base(tiny_model):
    return BaseModel(tiny_model, "float32", most_tokens=12)


@pytest.fixture
def policy(base):
    made = base.add(SETTINGS)
    yield made
    made.remove()


def request(texts=TEXTS, **options):
    return read_request(forward_backward("p", 1, [text_row(list(text)) for text in texts], **options))


def perturb(policy, seed):
    """Give an adapter's B values, so that it changes something."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters.values():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)


def numbers(policy):
    return {name: one.detach().clone() for name, one in policy.parameters.items()}


def alike(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def reference(model, text):
    """Return the log-probabilities of a text's tokens by a plain forward pass."""
    ids = torch.tensor([list(text)])
    logits = model(input_ids=ids).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]


def test_a_new_adapter_changes_nothing(policy, tiny_model):
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    found, metrics = policy.forward_backward(request())
    wanted = [reference(plain, text).detach().numpy() for text in TEXTS]
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert metrics["loss:sum"] == pytest.approx(-sum(one.sum() for one in wanted), rel=1e-5)


def test_the_gradient_is_that_of_the_loss_through_a_plain_forward_pass(base, policy):
    perturb(policy, 2)
    policy.forward_backward(request())
    found = {name: one.grad.clone() for name, one in policy.parameters.items()}
    for one in policy.parameters.values():
        one.grad = None
    with base.active(policy.name):
        (-sum(reference(base.model, text).sum() for text in TEXTS)).backward()
    for name, one in policy.parameters.items():
        torch.testing.assert_close(found[name], one.grad, rtol=1e-4, atol=1e-6)


def test_gradients_add_up_until_a_step_and_a_forward_pass_adds_none(policy):
    perturb(policy, 3)
    policy.forward_backward(request(TEXTS[:1]))
    first = {name: one.grad.clone() for name, one in policy.parameters.items()}
    policy.forward_backward(request(TEXTS[1:2], forward_only=True))
    assert alike(first, {name: one.grad for name, one in policy.parameters.items()})
    policy.forward_backward(request(TEXTS[:1]))
    assert alike(
        {name: 2 * one for name, one in first.items()}, {n: p.grad for n, p in policy.parameters.items()}
    )
    policy.step(AdamParams())
    assert all(one.grad is None for one in policy.parameters.values())


def test_a_step_is_that_of_adamw_with_the_requests_numbers(policy):
    perturb(policy, 4)
    before = numbers(policy)
    policy.forward_backward(request())
    gradients = {name: one.grad.clone() for name, one in policy.parameters.items()}
    norm = math.sqrt(sum(float((one**2).sum()) for one in gradients.values()))
    params = AdamParams(
        learning_rate=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, grad_clip_norm=norm / 2
    )
    assert policy.step(params) == {"grad_norm": pytest.approx(norm, rel=1e-5)}
    for name, one in policy.parameters.items():
        # The first step's moments, freed of their bias, are the clipped gradient and its square.
        clipped = gradients[name] / 2
        wanted = before[name] * (1 - 0.01 * 0.1) - 0.01 * clipped / (clipped.abs() + 1e-6)
        torch.testing.assert_close(one.detach(), wanted, rtol=1e-4, atol=1e-6)


def trained(policy, seed):
    """Train for two steps; yield after each part of it."""
    for step in range(2):
        policy.forward_backward(request(TEXTS[step : step + 2]))
        yield
        policy.step(AdamParams(learning_rate=0.01 * seed))
        yield


def test_two_policies_by_turns_end_bit_by_bit_where_each_does_alone(base):
    alone = []
    for seed in (1, 2):
        policy = base.add(AdapterSettings(rank=4, seed=seed))
        list(trained(policy, seed))
        alone.append(numbers(policy))
        policy.remove()
    first, second = (base.add(AdapterSettings(rank=4, seed=seed)) for seed in (1, 2))
    for _ in zip(trained(first, 1), trained(second, 2), strict=True):
        pass
    assert alike(numbers(first), alone[0]) and alike(numbers(second), alone[1])
    assert not alike(alone[0], alone[1])
    first.remove()
    second.remove()


def test_an_adapter_of_other_layers_leaves_the_rest_as_they_are(base):
    both, attention = base.add(SETTINGS), base.add(AdapterSettings(rank=2, seed=1, mlp=False))
    perturb(both, 5)
    plain, _ = attention.forward_backward(request(forward_only=True))
    perturb(attention, 6)
    changed, _ = attention.forward_backward(request(forward_only=True))
    both.remove()
    again, _ = attention.forward_backward(request(forward_only=True))
    assert all("self_attn" in name for name in attention.parameters)
    assert not np.array_equal(plain[0], changed[0]) and np.array_equal(again[0], changed[0])
    attention.remove()
    with pytest.raises(InputError, match="there is nothing to train"):
        base.layers(AdapterSettings(rank=2, seed=1, attention=False, mlp=False))


def test_a_request_that_fails_leaves_the_gradient_as_it_was(policy):
    perturb(policy, 7)
    policy.forward_backward(request(TEXTS[:1]))
    before = {name: one.grad.clone() for name, one in policy.parameters.items()}

    # The longer row is computed first and succeeds; the loss of the other fails.
    def row(length, marked):
        inputs = {"target_tokens": 6, "logprobs": 0.0, "advantages": 1.0, "sequence_ratio_mask": marked}
        return [5] * length, {name: [value] * length for name, value in inputs.items()}

    rows = [row(2, 0.0), row(9, 1.0)]
    with pytest.raises(InputError, match="marks no token"):
        policy.forward_backward(read_request(forward_backward("p", 2, rows, "gspo")))
    assert alike(before, {name: one.grad for name, one in policy.parameters.items()})
    with pytest.raises(InputError, match="data: must hold rows"):
        policy.forward_backward(request(()))


def test_what_was_saved_goes_on_bit_by_bit(base, policy, tmp_path):
    list(trained(policy, 1))
    policy.save(tmp_path / "state.safetensors")
    list(trained(policy, 1))
    again = base.add(AdapterSettings(rank=4, seed=9))
    again.load(tmp_path / "state.safetensors", optimizer=True)
    list(trained(again, 1))
    assert alike(numbers(again), numbers(policy))
    again.load(tmp_path / "state.safetensors", optimizer=False)
    list(trained(again, 1))
    assert not alike(numbers(again), numbers(policy))
    again.remove()
    other = base.add(AdapterSettings(rank=2, seed=9))
    with pytest.raises(InputError, match="holds an adapter of another rank or other layers"):
        other.load(tmp_path / "state.safetensors", optimizer=True)
    other.remove()


def test_a_written_adapter_is_one_of_peft(base, policy, tiny_model, tmp_path):
    from peft import PeftModel

    perturb(policy, 8)
    mine, _ = policy.forward_backward(request(forward_only=True))
    assert policy.write(tmp_path / "adapter", "org/base") > 0
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))
    for text, one in zip(TEXTS, mine, strict=True):
        np.testing.assert_allclose(one, reference(theirs, text).detach().numpy(), atol=1e-5)
