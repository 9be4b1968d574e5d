"""Several adapters in one batch on a CPU: each token gets its own, tokens without one get none."""

import pytest
import torch

pytestmark = pytest.mark.slow  # vLLM takes seconds to import
SLOTS, RANK, WIDTH, SLICES = 3, 4, 6, (5, 2)


@pytest.fixture
def wrapper():
    from asyncrl.extensions.lora.vllm_punica import GroupedPunica

    return GroupedPunica(32, 8, torch.device("cpu"))


def adapters():
    generator = torch.Generator().manual_seed(0)
    a = tuple(torch.randn(SLOTS, 1, RANK, WIDTH, generator=generator) for _ in SLICES)
    b = tuple(torch.randn(SLOTS, 1, size, RANK, generator=generator) for size in SLICES)
    return a, b


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("ids", [[7, 0, 9, 7, 0, 8], [7] * 6, [0] * 6])
def test_each_token_gets_its_own_adapter_or_none(wrapper, ids, prefill):
    from vllm.lora.layers import LoRAMapping

    held = [9, 7, 8]
    wrapper.update_metadata(LoRAMapping(tuple(ids), tuple(ids), prefill), held, SLOTS + 1, 100)
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))
    y = torch.randn(6, sum(SLICES), generator=torch.Generator().manual_seed(2))
    a, b = adapters()
    expected = y.clone()
    for row, adapter in enumerate(ids):
        if adapter:
            slot = held.index(adapter)
            expected[row] += 0.5 * torch.cat([b[s][slot, 0] @ (a[s][slot, 0] @ x[row]) for s in range(2)])
    wrapper.add_lora_linear(y, x, a, b, 0.5, SLICES)
    torch.testing.assert_close(y, expected)


def test_a_mix_that_changes_is_followed(wrapper):
    from vllm.lora.layers import LoRAMapping

    x, (a, b) = torch.ones(2, WIDTH), adapters()
    found = []
    for ids in ((7, 0), (0, 7)):
        wrapper.update_metadata(LoRAMapping(ids, ids, False), [7, None, None], SLOTS + 1, 100)
        y = torch.zeros(2, sum(SLICES))
        wrapper.add_lora_linear(y, x, a, b, 1.0, SLICES)
        found.append(y)
    assert found[0][0].abs().min() > 0 and not found[0][1].any()
    assert torch.equal(found[1], found[0].flip(0))
