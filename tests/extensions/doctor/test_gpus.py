"""What `asyncrl doctor` reads from nvidia-smi: recorded outputs, since no GPU is here, and the real thing for none."""

import pytest

from asyncrl.cuda_toolkit import Toolkit, torch_cuda
from asyncrl.extensions.doctor.command import _shm_problem
from asyncrl.extensions.doctor.gpus import (
    QUERY,
    check_driver,
    check_gpus,
    check_nccl,
    check_state,
    check_toolkit,
    check_topology,
    parse_states,
    parse_topology,
)
from asyncrl.gpus import on_cpu
from tests.test_locks import locked

BANNER = """Mon Nov 23 09:14:02 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
"""
NEW_BANNER = "| NVIDIA-SMI 610.57.04              KMD Version: 610.57.04     CUDA UMD Version: 13.3     |\n"
STATES = """0, NVIDIA A100-SXM4-80GB, 550.54.15, 81920, 81037, 8.0
1, NVIDIA A100-SXM4-80GB, 550.54.15, 81920, 40960, 8.0
2, Tesla V100-SXM2-32GB, 550.54.15, 32768, 32494, 7.0
3, Tesla P100-PCIE-16GB, 550.54.15, 16384, 16276, 6.0
4, NVIDIA H100 80GB HBM3, 550.54.15, [Insufficient Permissions], [Insufficient Permissions], 9.0
"""
NVLINK = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tPXB\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tPXB\t0-31\t0\t\tN/A
NIC0\tPXB\tPXB\t X \t\t\t\t

Legend:

  X    = Self
"""
PAIRS = """        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity
GPU0     X      NV4     SYS     SYS     PIX     0-23,48-71
GPU1    NV4      X      SYS     SYS     PXB     0-23,48-71
GPU2    SYS     SYS      X      NV4     NODE    24-47,72-95
GPU3    SYS     SYS     NV4      X      NODE    24-47,72-95
mlx5_0  PIX     PXB     NODE    NODE     X
"""
PCIE = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-63\t0\nGPU1\tPHB\t X \t0-63\t0\n"


@pytest.mark.parametrize(
    ("banner", "torch", "row"),
    [
        (BANNER, (12, 8), ("driver 550.54.15, CUDA 12.4; torch's CUDA 12.8", "")),
        (
            BANNER,
            (13, 0),
            (
                "driver 550.54.15, CUDA 12.4; torch's CUDA 13.0",
                "torch is built for CUDA 13.0, and the driver supports 12.4 at most: install a newer driver. The "
                f"package index has no torch {locked('gpu')['torch']} and vLLM 0.32 for CUDA 12; docs/install.md says "
                "what is elsewhere",
            ),
        ),
        (NEW_BANNER, (13, 0), ("driver 550.54.15, CUDA 13.3; torch's CUDA 13.0", "")),
        ("", (13, 0), ("driver 550.54.15, CUDA unknown; torch's CUDA 13.0", "")),
        (
            NEW_BANNER,
            None,
            (
                "driver 550.54.15, CUDA 13.3; torch's CUDA none",
                "torch is not a CUDA build; run scripts/install.sh gpu",
            ),
        ),
    ],
)
def test_the_driver_must_support_the_cuda_that_torch_was_built_for(banner, torch, row):
    assert check_driver(banner, parse_states(STATES), torch) == [row]


def test_each_gpu_is_old_taken_or_fine():
    rows = [check_state(state) for state in parse_states(STATES)]
    assert [line for ((line, _),) in rows] == [
        "GPU 0 NVIDIA A100-SXM4-80GB: 79.1 of 80.0 GiB free, compute capability 8",
        "GPU 1 NVIDIA A100-SXM4-80GB: 40.0 of 80.0 GiB free, compute capability 8",
        "GPU 2 Tesla V100-SXM2-32GB: 31.7 of 32.0 GiB free, compute capability 7",
        "GPU 3 Tesla P100-PCIE-16GB: 15.9 of 16.0 GiB free, compute capability 6",
        "GPU 4 NVIDIA H100 80GB HBM3: memory unknown",
    ]
    fine, taken, old, too_old, unknown = [problem for ((_, problem),) in rows]
    assert (fine, unknown) == ("", "")
    assert taken.startswith("GPU 1 has 40.0 of 80.0 GiB free, an engine takes 90%: end what uses it")
    assert old == "GPU 2 has compute capability 7, bfloat16 needs 8: set model.dtype=float32"
    assert too_old.startswith(
        "GPU 3 has compute capability 6, vLLM needs 7: leave it out of CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(
    ("text", "links", "line"),
    [
        (NVLINK, {(0, 1): "NV12"}, "all GPUs are connected by NVLink"),
        (
            PAIRS,
            {(0, 1): "NV4", (2, 3): "NV4"} | dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "SYS"),
            "NVLink within GPUs 0-1 and 2-3, else SYS: keep an engine's GPUs together (placement.engines)",
        ),
        (
            PCIE,
            {(0, 1): "PHB"},
            "GPUs are connected over PCIe (PHB): engine.tensor_parallel above 1 is slow",
        ),
        ("No devices were found\n", {}, "connections of the GPUs: unknown"),
    ],
)
def test_connections_of_gpus_are_read_from_the_matrix(text, links, line):
    assert parse_topology(text) == links
    assert check_topology(text) == [(line, "")]


def test_nccl_is_named_with_the_variables_that_change_it():
    assert check_nccl("2.28.9", {"NCCL_P2P_DISABLE": "1"}) == [("NCCL 2.28.9 (NCCL_P2P_DISABLE=1)", "")]
    assert check_nccl("", {}) == [("NCCL missing", "several GPUs need NCCL; run scripts/install.sh gpu")]


def test_shared_memory_of_a_container_is_named_with_what_makes_it_larger():
    assert "--shm-size=16g" in _shm_problem(64 * 2**20, 64 * 2**20)
    assert _shm_problem(2**34, 2**20).endswith("free or enlarge it, or set engine.weights_dir")
    assert _shm_problem(2**34, 2**33) == ""


def test_all_of_it_is_asked_of_the_program_itself(tmp_path, monkeypatch):
    """With a program that prints what was recorded, as if the CUDA build were installed."""
    listed = "".join(f"GPU {n}: NVIDIA A100-SXM4-80GB (UUID: GPU-{n}d5ba0d6-d33d)\n" for n in range(5))
    answers = {"-L": listed, f"--query-gpu={','.join(QUERY)}": STATES, "": NEW_BANNER, "topo": NVLINK}
    cases = []
    for number, (argument, text) in enumerate(answers.items()):
        (tmp_path / str(number)).write_text(text)
        cases.append(f"'{argument}') cat {tmp_path / str(number)};;")
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$1" in {" ".join(cases)} esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("asyncrl.extensions.doctor.gpus.on_cpu", lambda: False)
    lines = [line for line, _ in check_gpus()]
    assert lines[0] == "GPUs: 2 of 5 visible (0, 1)"
    assert lines[1].startswith("driver 550.54.15, CUDA 13.3; torch's CUDA ")
    assert [line[:6] for line in lines[2:4]] == ["GPU 0 ", "GPU 1 "]
    assert lines[4].startswith("NCCL ") and lines[5:] == ["all GPUs are connected by NVLink"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert check_gpus() == [("GPUs: none", "CUDA_VISIBLE_DEVICES='' hides all 5 GPUs: unset it")]
    program.write_text("#!/bin/sh\nexit 9\n")
    ((line, problem),) = check_gpus()
    assert line == "GPUs: none" and "install the driver" in problem


@pytest.mark.skipif(not on_cpu(), reason="the installed vLLM is for GPUs")
def test_a_cpu_build_needs_no_gpu():
    (row,) = check_gpus()
    assert row[0].startswith("GPUs: none is used") and row[1] == ""
    assert torch_cuda() is None


OLD = Toolkit("/usr/local/cuda/bin/nvcc", (12, 4), "")


def test_a_toolkit_of_another_cuda_is_named_and_what_comes_of_it():
    line = "CUDA toolkit /usr/local/cuda/bin/nvcc: it is CUDA 12.4, torch's is 13.0"
    assert check_toolkit(OLD, (13, 0), {}) == [
        (f"{line}, so engines compile no kernels of FlashInfer with it", "")
    ]
    ((said, problem),) = check_toolkit(OLD, (13, 0), {"VLLM_USE_FLASHINFER_SAMPLER": "1"})
    assert said == line
    assert problem == (
        "VLLM_USE_FLASHINFER_SAMPLER=1 has engines compile kernels of FlashInfer with /usr/local/cuda/bin/nvcc, but it "
        "is CUDA 12.4 and torch's is 13.0: unset it, or point CUDA_HOME at a toolkit of CUDA 13.0"
    )
    assert check_toolkit(None, (13, 0), {}) == [
        ("CUDA toolkit: none, so engines compile no kernels of FlashInfer", "")
    ]
    assert check_toolkit(OLD, None, {}) == []


def test_a_toolkit_of_torchs_cuda_is_named_with_what_points_at_it(tmp_path):
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libcudart.so").touch()
    nvcc = f"{tmp_path}/bin/nvcc"
    found = Toolkit(nvcc, (13, 0), "CUDA_HOME")
    assert check_toolkit(found, (13, 0), {}) == [(f"CUDA toolkit {nvcc}, by CUDA_HOME: torch's CUDA", "")]
