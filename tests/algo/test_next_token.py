"""Scores of next-token distributions are exact, and finite beside tokens that cannot be sampled."""

import math

import pytest
import torch

from asyncrl.algo.next_token import next_token_scores
from asyncrl.extensions.distillation.losses import full_kl

INF = torch.inf


def scores(logits, labels):
    return torch.stack(next_token_scores(logits, labels, entropy=True, sum_pi_squared=True))


def test_scores_of_a_distribution_worked_out_by_hand():
    logits = torch.tensor([[math.log(1.0), math.log(2.0), math.log(5.0)]], dtype=torch.float64)
    found = scores(logits, torch.tensor([1])).flatten().tolist()
    p = [1 / 8, 2 / 8, 5 / 8]
    expected = [math.log(p[1]), -sum(x * math.log(x) for x in p), sum(x * x for x in p)]
    assert found == pytest.approx(expected, rel=1e-12)


def test_gradients_are_those_of_finite_differences():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 6, 3, 3, 1])
    assert torch.autograd.gradcheck(lambda z: tuple(scores(z, labels)), logits)
    assert torch.autograd.gradcheck(lambda z: next_token_scores(z, labels).logp, logits)


def test_what_is_not_asked_for_is_not_there():
    found = next_token_scores(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), sum_pi_squared=True)
    assert found.entropy is None
    assert found.sum_pi_squared.tolist() == pytest.approx([1 / 3, 1 / 3])


def test_a_token_that_cannot_be_sampled_is_as_if_it_were_not_in_the_vocabulary():
    narrow = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    wide = torch.tensor([[0.3, -INF, -1.0, 2.0]], requires_grad=True)
    ours, theirs = scores(wide, torch.tensor([3])), scores(narrow, torch.tensor([2]))
    torch.testing.assert_close(ours, theirs)
    weight = torch.tensor([[1.0], [-2.0], [3.0]])
    (grad,) = torch.autograd.grad((ours * weight).sum(), wide)
    (expected,) = torch.autograd.grad((theirs * weight).sum(), narrow)
    assert grad[0, 1] == 0
    torch.testing.assert_close(grad[:, [0, 2, 3]], expected)


def test_a_nan_logit_makes_every_score_a_nan():
    assert scores(torch.tensor([[0.0, torch.nan, 1.0]]), torch.tensor([0])).isnan().all()


@pytest.mark.parametrize("direction", ["reverse", "forward", "jsd"])
def test_divergences_and_their_gradients_are_finite_where_both_exclude_a_token(direction):
    student = torch.tensor([[0.3, -INF, -1.0, 2.0]], requires_grad=True)
    teacher = torch.tensor([[1.0, -INF, 0.5, 0.0]])
    kept = [0, 2, 3]
    narrow = student.detach()[:, kept].requires_grad_()
    value, expected = full_kl(student, teacher, direction), full_kl(narrow, teacher[:, kept], direction)
    torch.testing.assert_close(value, expected)
    (grad,) = torch.autograd.grad(value.sum(), student)
    (expected_grad,) = torch.autograd.grad(expected.sum(), narrow)
    assert grad[0, 1] == 0
    torch.testing.assert_close(grad[:, kept], expected_grad)


@pytest.mark.parametrize(
    ("student", "teacher", "direction", "finite"),
    [
        ([0.0, -INF], [0.0, 0.0], "reverse", True),
        ([0.0, 0.0], [0.0, -INF], "reverse", False),
        ([0.0, 0.0], [0.0, -INF], "forward", True),
        ([0.0, -INF], [0.0, 0.0], "forward", False),
        ([0.0, -INF], [-INF, 0.0], "jsd", True),
    ],
)
def test_divergences_are_infinite_only_where_they_are_by_definition(student, teacher, direction, finite):
    logits = torch.tensor([student], requires_grad=True)
    value = full_kl(logits, torch.tensor([teacher]), direction)
    if not finite:
        assert value.tolist() == [INF]
        return
    expected = math.log(2)
    assert value.tolist() == pytest.approx([expected])
    assert torch.isfinite(torch.autograd.grad(value.sum(), logits)[0]).all()


@pytest.mark.parametrize("direction", ["reverse", "forward", "jsd"])
@pytest.mark.parametrize("broken", ["student", "teacher"])
def test_a_nan_logit_is_never_a_divergence_of_zero(direction, broken):
    logits = {"student": torch.tensor([[0.0, 1.0]]), "teacher": torch.tensor([[0.5, 1.0]])}
    logits[broken][0, 0] = torch.nan
    assert full_kl(logits["student"], logits["teacher"], direction).isnan().all()
