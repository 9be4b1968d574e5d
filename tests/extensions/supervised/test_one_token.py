"""One-token rollout on numbers worked out by hand, and its gradient against the expectation it estimates."""

import pytest
import torch

from asyncrl.extensions.supervised.one_token import OneToken, one_token_objective


def test_right_tokens_count_1_and_all_others_a_tenth_against_them():
    log_pi = torch.tensor([[-1.0, -2.0, -2.0, -4.0], [-3.0, -3.0, -1.0, -1.0]])
    right = torch.tensor([[True, False, False, True], [False, False, False, False]])
    found = one_token_objective(log_pi, right)
    assert found.tolist() == pytest.approx([(-1.0 - 4.0 + 0.2 + 0.2) / 4, 0.1 * 8.0 / 4])


def test_its_gradient_is_that_of_the_expectation_under_the_tempered_policy():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 0.0, 3.0, 0.0]], requires_grad=True)
    labels = torch.tensor([[1, 0], [2, 1]])
    OneToken(7, samples=200_000)(logits, labels, 1.0).sum().backward()
    drawn = torch.softmax(logits.detach() / 1.3, -1)
    rewards = torch.where(torch.arange(4) == labels[:, :1], 1.0, -0.1)
    again = logits.detach().clone().requires_grad_()
    (drawn * rewards * torch.log_softmax(again, -1)).sum().backward()
    assert torch.allclose(logits.grad, again.grad, atol=5e-3)


def test_a_token_that_the_policy_would_never_write_is_not_learned_as_it_is_by_likelihood():
    logits = torch.tensor([[10.0, 0.0, -20.0]], requires_grad=True)
    objective = OneToken(0)(logits, torch.tensor([[2, 0]]), 1.0)
    (pulled,) = torch.autograd.grad(objective.sum(), logits)
    (by_likelihood,) = torch.autograd.grad(torch.log_softmax(logits, -1)[0, 2], logits)
    assert abs(float(pulled[0, 2])) < 1e-3 < 0.9 < float(by_likelihood[0, 2])


def test_the_same_seed_and_place_draw_the_same_tokens():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[4, 8], [5, 9], [6, 10]])
    first, again = (OneToken(3)(logits, labels, 1.0) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, OneToken(4)(logits, labels, 1.0))
    assert not torch.equal(first, OneToken(3)(logits, labels + torch.tensor([0, 1]), 1.0))


def test_logits_at_another_temperature_are_drawn_from_as_those_before_it():
    raw = torch.tensor([3.0, 1.0, 0.0])
    labels = torch.stack([torch.zeros(2000, dtype=torch.long), torch.arange(2000)], -1)
    drawn = torch.softmax(raw / 1.3, 0)
    for temperature in (1.0, 2.0):
        value = OneToken(1, samples=64)((raw / temperature).repeat(2000, 1), labels, temperature).mean()
        log_pi = torch.log_softmax(raw / temperature, 0)
        expected = float((drawn * torch.tensor([1.0, -0.1, -0.1]) * log_pi).sum())
        assert float(value) == pytest.approx(expected, abs=0.02)


def test_no_tokens_have_a_value_of_0_that_reaches_the_weights():
    weight = torch.ones((), requires_grad=True)
    found = OneToken(0)(torch.zeros(0, 5) * weight, torch.zeros(0, 2, dtype=torch.long), 1.0)
    found.sum().backward()
    assert (found.shape, float(weight.grad), float(found.detach().sum())) == ((0,), 0.0, 0.0)
