"""Which CUDA compiler vLLM would build kernels with on this machine, found without loading torch or vLLM.

vLLM takes FlashInfer for usable where it finds an nvcc: below CUDA_HOME or CUDA_PATH, on PATH, or in /usr/local/cuda.
FlashInfer then compiles its kernels with that toolkit and links them with its libcudart, in a process that has torch's.
DeepGEMM compiles with the same nvcc. FlashInfer's sampler does not ask whether there is one, and ends an engine in its
first request with top_p or top_k and without log-probabilities. So engines compile with a toolkit of torch's version of
CUDA and with no other.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT = "/usr/local/cuda"
"""Where vLLM and FlashInfer look last."""
SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
DEEP_GEMM = "VLLM_USE_DEEP_GEMM"
COMPILED = "flashinfer_jit_cache"
"""A package with FlashInfer's kernels, compiled: it needs no toolkit."""
NO_TOOLKIT = Path(__file__).parent
"""A folder without bin/nvcc. Where CUDA_HOME is this, vLLM looks at no other place."""
TIMEOUT_S = 30.0
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"](\d+)\.(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit as vLLM would find it."""

    nvcc: str
    release: tuple[int, int] | None
    """CUDA's major and minor version; None where nvcc does not say it."""
    said_by: str
    """What points at it: an environment variable, or "" for `DEFAULT`."""

    @property
    def links(self) -> bool:
        """Whether it has what FlashInfer links kernels with. The toolkit that is installed by pip has not."""
        return (Path(self.nvcc).parent.parent / "lib64" / "libcudart.so").exists()

    def unfit(self, built_for: tuple[int, int] | None) -> str:
        """Say why kernels that it compiles are none for a torch of CUDA `built_for`; "" where they are."""
        if self.release != built_for:
            own = "of an unknown CUDA" if self.release is None else "CUDA {}.{}".format(*self.release)
            return f"it is {own}"
        return "" if self.links else "it has no lib64/libcudart.so"


def find_toolkit(env: Mapping[str, str] = os.environ, default: str = DEFAULT) -> Toolkit | None:
    """Return the toolkit that vLLM would compile with, as `vllm.utils.flashinfer` looks for it; None without one."""
    said_by = next((name for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)), "")
    home = env.get(said_by, "")
    if not home and (on_path := shutil.which("nvcc", path=env.get("PATH", os.defpath))):
        said_by, home = "PATH", str(Path(on_path).parent.parent)
    nvcc = shutil.which(str(Path(home or default) / "bin" / "nvcc"))
    return None if nvcc is None else Toolkit(nvcc, _release(nvcc), said_by)


def torch_cuda() -> tuple[int, int] | None:
    """Return the CUDA version that torch was built for, without importing it; None for a CPU build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    match = _TORCH_CUDA.search((Path(spec.origin).parent / "version.py").read_text())
    return (int(match[1]), int(match[2])) if match else None


def insisted(env: Mapping[str, str]) -> bool:
    """Whether the user asks for FlashInfer with whatever toolkit there is, by VLLM_USE_FLASHINFER_SAMPLER=1."""
    return env.get(SAMPLER, "0") != "0"


def engine_variables(
    env: Mapping[str, str], built_for: tuple[int, int] | None, default: str = DEFAULT
) -> dict[str, str]:
    """Return what to set for an engine on GPUs so that it compiles kernels with a toolkit of torch's CUDA alone.

    built_for: torch's CUDA. Nothing where the toolkit fits and there is a ninja, where FlashInfer's kernels are
    installed, and where the user has asked for FlashInfer (`insisted`).
    """
    if insisted(env) or importlib.util.find_spec(COMPILED) is not None:
        return {}
    found = find_toolkit(env, default)
    if found is not None and not found.unfit(built_for) and shutil.which("ninja", path=env.get("PATH")):
        return {}
    changed = {SAMPLER: "0"} | ({} if DEEP_GEMM in env else {DEEP_GEMM: "0"})
    return changed if found is None else changed | {"CUDA_HOME": str(NO_TOOLKIT)}


@functools.cache
def _release(nvcc: str) -> tuple[int, int] | None:
    try:
        done = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _RELEASE.search(done.stdout)
    return (int(match[1]), int(match[2])) if match else None
