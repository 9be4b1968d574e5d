"""Int8 layers multiply right on every CPU, and by the scales of the update that they were packed in."""

import gc
import platform
import weakref

import pytest
import torch

from asyncrl.gpus import on_cpu
from asyncrl.weights.vllm_int8 import SplitProduct, halves, int8_saturates
from asyncrl.weights.vllm_plugin import register
from tests.packages import ImportedWhenUsed

custom_ops = ImportedWhenUsed("vllm._custom_ops")
pytestmark = pytest.mark.skipif(not on_cpu(), reason="it is about vLLM's build for CPUs")


def matrices(K, N):
    generator = torch.Generator().manual_seed(0)
    weights_NK = torch.randint(-128, 128, (N, K), generator=generator, dtype=torch.int8)
    return weights_NK.t(), torch.rand(N, 1, generator=generator) / 100


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it is about CPUs of x86")
@pytest.mark.parametrize(
    ("flags", "saturates"), [("fma avx2", True), ("avx2 avx_vnni", False), ("avx512f avx512_vnni", False)]
)
def test_int8_saturates_on_a_cpu_without_vnni(tmp_path, flags, saturates):
    (tmp_path / "cpuinfo").write_text(f"model name\t: one\nflags\t\t: fpu {flags} sse2\n")
    assert int8_saturates(tmp_path / "cpuinfo") is saturates


def test_halves_add_to_their_matrix_and_two_products_of_them_fit_in_16_bits():
    weights_KN = torch.arange(-128, 128).to(torch.int8).reshape(2, 128).t()
    high_KN, low_KN = halves(weights_KN)
    assert torch.equal(2 * high_KN.int() + low_KN.int(), weights_KN.int())
    assert (high_KN.min(), high_KN.max(), low_KN.min(), low_KN.max()) == (-64, 63, 0, 1)
    assert 2 * 255 * 64 <= 2**15


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_in_two_halves_is_that_of_the_whole_matrix(symmetric, biased):
    register()
    weights_KN, scales_N1 = matrices(1024, 48)
    bias_N = torch.arange(48.0) if biased else None
    generator = torch.Generator().manual_seed(1)
    tokens, token_scales, zeros = custom_ops.onednn_scaled_int8_quant(
        torch.randn(3, 1024, generator=generator) + 0.5, None, None, symmetric
    )
    adjustment_1N = weights_KN.sum(0, keepdim=True, dtype=torch.float32) * scales_N1.T
    product = SplitProduct(custom_ops.create_onednn_scaled_mm, weights_KN, scales_N1, True, not symmetric, 32)
    out = torch.empty(3, 48)
    product.multiply(custom_ops.onednn_scaled_mm, tokens, out, token_scales, zeros, adjustment_1N, bias_N)
    shifted = tokens.double() - (0 if symmetric else zeros.double())
    expected = (shifted * token_scales.double()) @ (weights_KN.double() * scales_N1.double().T)
    torch.testing.assert_close(out.double(), expected + (bias_N if biased else 0), rtol=1e-5, atol=1e-4)


def test_a_large_sum_is_right_on_this_machine():
    register()
    weights_KN, scales_N1 = torch.full((64, 64), 127, dtype=torch.int8).t(), torch.ones(64, 1)
    handle = custom_ops.create_onednn_scaled_mm(weights_KN, scales_N1, torch.float32, True, False, 32)
    tokens, token_scales, _ = custom_ops.onednn_scaled_int8_quant(torch.full((4, 64), 127.0))
    out = torch.empty(4, 64)
    custom_ops.onednn_scaled_mm(handle, tokens, out, token_scales, None, None, None)
    assert (out / (64 * 127 * 127)).flatten().tolist() == pytest.approx([1.0] * 256, rel=1e-6)


def test_int8_weights_keep_the_scales_they_were_packed_with():
    """A reload frees what it has packed from, and packed weights know only the address of their scales."""
    register()
    generator = torch.Generator().manual_seed(0)
    weight_KN = torch.randint(-127, 128, (64, 32), generator=generator, dtype=torch.int8)
    scales_N = torch.rand(32, 1, generator=generator) / 100
    given = scales_N.clone()
    alive = weakref.ref(given)
    # Arguments after the type: quantised per token, without a zero point, kernels kept.
    packed = custom_ops.create_onednn_scaled_mm(
        weight_KN.t().contiguous().t(), given, torch.float32, True, False, 32
    )
    del given
    gc.collect()
    assert alive() is not None
    tokens, token_scales, _ = custom_ops.onednn_scaled_int8_quant(torch.randn(5, 64, generator=generator))
    out = torch.empty(5, 32)
    custom_ops.onednn_scaled_mm(packed, tokens, out, token_scales, None, None, None)
    expected = (tokens.float() * token_scales) @ (weight_KN.float() * scales_N.T)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
