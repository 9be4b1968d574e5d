"""vLLM's C kernels normalise as its torch code does."""

import pytest
import torch

from tests.packages import ImportedWhenUsed

norms = ImportedWhenUsed("asyncrl.weights.vllm_norms")


@pytest.fixture(scope="module")
def ops():
    """vLLM's operations with its kernels for CPUs."""
    import vllm._custom_ops  # noqa: F401 - loads the kernels
    from vllm import ir

    return ir.ops


def test_rows_and_heads_cut_out_of_a_larger_tensor_are_normalised_alike(ops):
    torch.manual_seed(0)
    weight = torch.rand(32)
    heads = torch.randn(5, 256)[:, :128].view(5, 4, 32)
    for x in (torch.randn(7, 32), heads):
        assert norms.takes(x, weight, 1e-6)
        expected = ops.rms_norm.impls["native"].impl_fn(x, weight, 1e-6)
        torch.testing.assert_close(norms.rms_norm(x, weight, 1e-6), expected, atol=1e-6, rtol=1e-6)


def test_a_sum_is_kept_beside_its_normalised_form(ops):
    torch.manual_seed(0)
    x, residual, weight = torch.randn(7, 128), torch.randn(7, 128), torch.rand(128)
    expected, total = ops.fused_add_rms_norm.impls["native"].impl_fn(
        x.clone(), residual.clone(), weight, 1e-6
    )
    assert norms.takes_sum(x, residual, weight, 1e-6)
    found, kept = norms.fused_add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(kept, total, atol=0, rtol=0)


def test_other_types_and_parts_of_a_row_are_left_to_torch():
    x, weight = torch.randn(4, 8), torch.ones(8)
    assert not norms.takes(x.bfloat16(), weight.bfloat16(), 1e-6)
    assert not norms.takes(x, None, 1e-6)
    assert not norms.takes(x, weight, 1e-6, variance_size=4)
    assert not norms.takes_sum(x.t().contiguous().t(), x, weight, 1e-6)
