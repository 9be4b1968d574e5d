"""GPUs are found as CUDA would show them, from recorded outputs of `nvidia-smi -L`: no GPU is here."""

import sys
from pathlib import Path

import pytest

from asyncrl.gpus import (
    ListedGpu,
    find_own_programs,
    found_gpus,
    grow_segments,
    list_gpus,
    on_cpu,
    parse_list,
    visible,
    visible_env,
)

TWO = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-c6d4f1ef-42e4-7de3-91c7-45d71c87eb3f)
"""
DIVIDED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.40gb     Device  0: (UUID: MIG-7c2f4b39-2b5e-5b8e-8f1a-111111111111)
  MIG 3g.40gb     Device  1: (UUID: MIG-7c2f4b39-2b5e-5b8e-8f1a-222222222222)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22222222-d33d-2b2c-524d-9e3d8d2b8a77)
"""
UUID = "GPU-c6d4f1ef-42e4-7de3-91c7-45d71c87eb3f"
MIG = "MIG-7c2f4b39-2b5e-5b8e-8f1a-222222222222"


@pytest.mark.parametrize(
    ("text", "variable", "names"),
    [
        (TWO, None, ("0", "1")),
        (TWO, "1,0", ("1", "0")),
        (TWO, " 1 ", ("1",)),
        (TWO, "", ()),
        (TWO, "-1", ()),
        (TWO, "0,7,1", ("0",)),  # CUDA ignores what follows an index that is not there
        (TWO, "0,0", ("0",)),
        (TWO, UUID, (UUID,)),
        (TWO, "GPU-c6d4", ("GPU-c6d4",)),
        (TWO, "GPU-ffff", ()),
        (DIVIDED, None, ("MIG-7c2f4b39-2b5e-5b8e-8f1a-111111111111", MIG, "1")),
        (DIVIDED, MIG, (MIG,)),
    ],
)
def test_visible_devices_are_those_that_cuda_shows(text, variable, names):
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible(parse_list(text), env) == names


def test_without_nvidia_smi_names_of_devices_are_believed():
    assert visible([ListedGpu(), ListedGpu()], {"CUDA_VISIBLE_DEVICES": f"{UUID},1"}) == (UUID, "1")
    assert visible([], {"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_a_slice_keeps_names_and_fixes_the_order_of_indices_that_nvidia_smi_gave():
    chosen = {"CUDA_VISIBLE_DEVICES": f"{UUID},{MIG}"}
    assert visible_env([MIG], chosen) == {"CUDA_VISIBLE_DEVICES": MIG}
    assert visible_env(["1"], {}) == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.skipif(not on_cpu(), reason="the installed vLLM is for GPUs")
def test_a_cpu_build_uses_no_gpu_whatever_the_machine_has(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found_gpus.cache_clear()
    assert found_gpus() == ()


def test_a_driver_that_does_not_answer_is_no_gpu(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    known = len(list_gpus())
    smi.write_text(f"#!/bin/sh\nprintf '%s' '{TWO}'\n")
    assert (known, [gpu.uuid[:8] for gpu in list_gpus()]) == (known, ["GPU-5d5b", "GPU-c6d4"])
    assert known == 0 or not on_cpu()


def test_a_trainer_has_torch_grow_its_segments_unless_the_user_says_otherwise():
    env = {}
    grow_segments(env)
    assert env == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        given = {name: "max_split_size_mb:512"}
        grow_segments(given)
        assert given == {name: "max_split_size_mb:512"}


def test_programs_of_this_installation_are_found_without_activating_it():
    own = str(Path(sys.executable).parent)
    for before, after in (("/usr/bin", f"{own}:/usr/bin"), ("", own), (f"/usr/bin:{own}", f"/usr/bin:{own}")):
        env = {"PATH": before}
        find_own_programs(env)
        assert env == {"PATH": after}
