"""What must hold for every loss and every correction of the registry, and for those added later."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.algo import signature
from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import marks_of
from asyncrl.algo.registry import parts, resolve
from tests.algo.factories import OF_TOKENS, loss_fields

REQUIRED = {"opsm": {"delta": 0.0}, "sequence_kl": {"upper": 0.05}}
seeds = st.integers(0, 2**31 - 1)
few = settings(max_examples=15)


def run_loss(name: str, fields: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """`(token loss, gradient of its sum)`; one on whole distributions is differentiated by their divergence."""
    source = "teacher_kl" if name == "opd_full" else "logp"
    leaf = fields[source].clone().requires_grad_()
    token_loss = resolve("loss", name)(LossInputs.of({**fields, source: leaf})).token_loss
    return token_loss.detach(), torch.autograd.grad(token_loss.sum(), leaf)[0]


def run_correction(name: str, fields: dict, **params) -> torch.Tensor:
    return resolve("correction", name)(LossInputs.of(fields), **{**REQUIRED.get(name, {}), **params})


def with_garbage(fields: dict) -> dict:
    """The same batch with NaN, infinity and huge numbers wherever nothing was sampled."""
    mask = fields["mask"]
    junk = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30], dtype=torch.float64)
    spoiled = dict(fields)
    for name in OF_TOKENS:
        x = fields[name].clone()
        x[~mask] = junk[torch.arange(int((~mask).sum())) % 4]
        spoiled[name] = x
    spoiled["versions"] = torch.where(mask, fields["versions"], -1)
    return spoiled


def permuted(fields: dict, order: torch.Tensor) -> dict:
    return {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in fields.items()}


def padded(fields: dict, extra: int) -> dict:
    """The same batch with `extra` masked columns at the end."""
    wide = dict(fields)
    for name, x in fields.items():
        if isinstance(x, torch.Tensor) and x.dim() >= 2:
            pad = torch.zeros(x.shape[0], extra, *x.shape[2:], dtype=x.dtype)
            wide[name] = torch.cat([x, pad], dim=1)
    return wide


@pytest.mark.parametrize("name", parts()["loss"])
def test_a_loss_reads_rewards_unless_it_says_otherwise(name):
    changes = []
    for seed in range(5):
        fields = loss_fields(seed)
        other = fields | {"advantages": -fields["advantages"], "scores": -fields["scores"]}
        changes.append(not torch.equal(run_loss(name, fields)[1], run_loss(name, other)[1]))
    found = signature.read("loss", name)
    reads = found.reads_rewards and not found.needs({}) & {"teacher", "teacher_logits"}
    assert any(changes) == reads


@pytest.mark.parametrize("name", parts()["loss"])
def test_a_loss_says_whether_a_row_without_advantages_has_no_gradient(name):
    marked = any(mark.decorator == "weighed_by_advantage" for mark in marks_of(resolve("loss", name)))
    gradients = []
    for seed in range(40):
        fields = loss_fields(seed)
        fields["advantages"][1] = 0
        gradients.append(run_loss(name, fields)[1])
    assert any(gradient[0].any() for gradient in gradients)
    assert any(gradient[1].any() for gradient in gradients) != marked


@pytest.mark.parametrize("name", parts()["loss"])
class TestEveryLoss:
    @few
    @given(seed=seeds)
    def test_masked_tokens_change_nothing(self, name, seed):
        fields = loss_fields(seed)
        loss, grad = run_loss(name, fields)
        spoiled_loss, spoiled_grad = run_loss(name, with_garbage(fields))
        assert torch.equal(loss, spoiled_loss)
        assert torch.equal(grad, spoiled_grad)
        assert (loss[~fields["mask"]] == 0).all()
        assert (grad[~fields["mask"]] == 0).all()

    @few
    @given(seed=seeds)
    def test_permuting_rows_permutes_the_loss(self, name, seed):
        fields, order = loss_fields(seed), torch.tensor([2, 0, 3, 1])
        loss, grad = run_loss(name, fields)
        other_loss, other_grad = run_loss(name, permuted(fields, order))
        torch.testing.assert_close(other_loss, loss[order], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other_grad, grad[order], rtol=1e-12, atol=1e-12)

    @few
    @given(seed=seeds, extra=st.integers(1, 5))
    def test_padding_changes_nothing(self, name, seed, extra):
        fields = loss_fields(seed)
        width = fields["mask"].shape[1]
        loss, grad = run_loss(name, fields)
        wide_loss, wide_grad = run_loss(name, padded(fields, extra))
        torch.testing.assert_close(wide_loss[:, :width], loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(wide_grad[:, :width], grad, rtol=1e-12, atol=1e-12)
        assert (wide_loss[:, width:] == 0).all()

    @few
    @given(seed=seeds)
    def test_extreme_log_ratios_stay_finite(self, name, seed):
        fields = loss_fields(seed)
        fields["logp"][0] = -700.0
        fields["behavior_logp"][1] = -700.0
        fields["proximal_logp"][2] = -700.0
        fields["proximal_logp"][3] = fields["behavior_logp"][3] = -0.0
        fields = {k: v.float() if k in OF_TOKENS else v for k, v in fields.items()}
        loss, grad = run_loss(name, fields)
        assert torch.isfinite(loss).all()
        assert torch.isfinite(grad).all()

    @few
    @given(seed=seeds)
    def test_low_precision_inputs_agree_with_float64(self, name, seed):
        """bfloat16 and float32 inputs give the float64 result of the same numbers to 1e-4."""
        fields = loss_fields(seed)
        names = [*OF_TOKENS, "scores"]
        for dtype in (torch.bfloat16, torch.float32):
            low = {k: v.to(dtype) if k in names else v for k, v in fields.items()}
            exact = {k: v.double() if k in names else v for k, v in low.items()}
            loss, grad = run_loss(name, low)
            exact_loss, exact_grad = run_loss(name, exact)
            torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-4, atol=1e-4)
            # The gradient returns in the dtype of the leaf, so bfloat16 rounds it to 8 bits.
            tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-4
            torch.testing.assert_close(grad.double(), exact_grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", parts()["correction"])
class TestEveryCorrection:
    @few
    @given(seed=seeds)
    def test_masked_tokens_change_nothing(self, name, seed):
        fields = loss_fields(seed)
        weight = run_correction(name, fields)
        assert torch.equal(weight, run_correction(name, with_garbage(fields)))
        assert (weight[~fields["mask"]] == 0).all()

    @few
    @given(seed=seeds)
    def test_weights_carry_no_gradient_and_are_not_negative(self, name, seed):
        fields = loss_fields(seed)
        fields["logp"].requires_grad_()
        weight = run_correction(name, fields)
        assert not weight.requires_grad
        assert (weight >= 0).all()

    @few
    @given(seed=seeds, extra=st.integers(1, 5))
    def test_padding_and_row_order_change_nothing(self, name, seed, extra):
        fields, order = loss_fields(seed), torch.tensor([2, 0, 3, 1])
        weight, width = run_correction(name, fields), fields["mask"].shape[1]
        torch.testing.assert_close(run_correction(name, padded(fields, extra))[:, :width], weight)
        torch.testing.assert_close(run_correction(name, permuted(fields, order)), weight[order])

    @few
    @given(seed=seeds)
    def test_identical_policies_are_not_corrected(self, name, seed):
        fields = loss_fields(seed)
        fields["proximal_logp"] = fields["logp"] = fields["behavior_logp"]
        # What is chosen by entropy does not depend on how policies differ.
        everything = {"share": 1.0} if name.startswith("top_entropy") else {}
        assert torch.equal(run_correction(name, fields, **everything), fields["mask"].double())

    @few
    @given(seed=seeds)
    def test_extreme_log_ratios_stay_finite(self, name, seed):
        fields = loss_fields(seed)
        fields["behavior_logp"][0] = -700.0
        fields["proximal_logp"][1] = -700.0
        fields = {k: v.float() if k in OF_TOKENS else v for k, v in fields.items()}
        assert torch.isfinite(run_correction(name, fields)).all()
