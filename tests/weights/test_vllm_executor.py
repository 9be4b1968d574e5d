"""The memory of a KV cache on CPUs is zero, and taken only where it is used."""

import psutil
import pytest
import torch

from tests.packages import ImportedWhenUsed

executor = ImportedWhenUsed("asyncrl.weights.vllm_executor")

SIZE = 256 * 2**20


@pytest.mark.slow
def test_a_cache_takes_memory_where_it_is_written_and_reads_as_zeros():
    def resident():
        return psutil.Process().memory_info().rss

    zeros = executor.LazyZeros()  # imports vLLM
    before = resident()
    with zeros:
        cache = torch.zeros(SIZE, dtype=torch.int8, device=torch.device("cpu"))
    assert cache.shape == (SIZE,)
    assert cache.data_ptr() % 4096 == 0
    assert resident() - before < SIZE // 4
    cache[: SIZE // 2] = 1
    assert resident() - before > SIZE // 4
    assert int(cache[SIZE // 2 :].count_nonzero()) == 0


def test_other_tensors_of_zeros_are_torchs_own():
    with executor.LazyZeros():
        counts = torch.zeros(2, 3, dtype=torch.int8)
        floats = torch.zeros(4, dtype=torch.float32)
    assert counts.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert floats.tolist() == [0.0] * 4
