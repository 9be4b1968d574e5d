"""Whether an earlier policy has room on a GPU, of which torch keeps what was freed. No GPU is there."""

import torch

from asyncrl.train.engine import earlier_policy
from asyncrl.train.engine.engine_parts import Layout
from asyncrl.weights.files import weights_path

GIB = 2**30


class Engine:
    stage, rank, layout, device = 2, 0, Layout(), torch.device("cpu")

    def all_reduce(self, tensor, kind):
        assert kind == "min"


class OnGpu(Engine):
    class device:
        type = "cuda"


def test_what_torch_keeps_of_freed_memory_counts_as_free(tmp_path, monkeypatch, caplog):
    gpu = {"mem_get_info": (GIB, 80 * GIB), "memory_reserved": 60 * GIB, "memory_allocated": 40 * GIB}
    for name in gpu:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: gpu[name])
    assert earlier_policy.free_bytes(OnGpu.device) == 21 * GIB
    path = weights_path(tmp_path, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(10 * GIB)  # sparse
    monkeypatch.setattr(earlier_policy, "_warned", False)
    assert earlier_policy._fits(OnGpu(), path)
    gpu["memory_allocated"] = 50 * GIB
    assert [earlier_policy._fits(OnGpu(), path) for _ in range(3)] == [False] * 3
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 1
    assert "need twice 10.0 GiB, and 11.0 GiB of the GPU are free" in said[0]


def test_on_a_cpu_only_the_file_must_be_there(tmp_path):
    assert earlier_policy.readable(Engine(), tmp_path, [3]) == []
    path = weights_path(tmp_path, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert earlier_policy.readable(Engine(), tmp_path, [3, 4]) == [3]
