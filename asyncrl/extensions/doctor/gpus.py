"""What `asyncrl doctor` finds out about GPUs: driver, CUDA, free memory, NCCL, connections. Loads no torch.

Each check reads text that `nvidia-smi` has printed, and returns rows `(what was found, what to do about it)`; "" where
nothing is to be done.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncrl.cuda_toolkit import COMPILED, SAMPLER, Toolkit, find_toolkit, insisted, torch_cuda
from asyncrl.gpus import VARIABLE, list_gpus, nvidia_smi, on_cpu, visible
from asyncrl.installation import PINS, VLLM

Row = tuple[str, str]

QUERY = ("index", "name", "driver_version", "memory.total", "memory.free", "compute_cap")
LEAST_CAPABILITY = 7.0
"""For vLLM's CUDA build; bfloat16 needs `BF16_CAPABILITY`."""
BF16_CAPABILITY = 8.0
FREE_SHARE = 0.9
"""The free share of a GPU's memory, which an engine that has it to itself takes."""
MIB_PER_GIB = 1024
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)")
_SETTINGS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME")
"""Variables that change how NCCL connects GPUs, often left behind."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as `nvidia-smi --query-gpu` describes it. Memory in MiB; None where it does not say."""

    index: int
    name: str
    driver: str
    total: float | None
    free: float | None
    capability: float | None


def check_gpus() -> list[Row]:
    """Return the rows of this machine."""
    listed = list_gpus()
    if on_cpu():
        left = f": {len(listed)} of the machine are left unused by the CPU build of vLLM" if listed else ""
        return [(f"GPUs: none is used{left or ', runs on the CPU'}", "")]
    shown = visible(listed, os.environ)
    if not shown:
        return [("GPUs: none", _why_none(listed, os.environ))]
    rows = [(f"GPUs: {len(shown)} of {len(listed)} visible ({', '.join(shown)})", "")]
    states = parse_states(nvidia_smi(f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"))
    rows += check_driver(nvidia_smi(), states, torch_cuda())
    rows += check_toolkit(find_toolkit(), torch_cuda(), os.environ)
    rows += [row for state in states if _is_shown(state, shown) for row in check_state(state)]
    if len(shown) > 1:
        rows += check_nccl(_nccl_version(), os.environ)
        rows += check_topology(nvidia_smi("topo", "-m"))
    return rows


def parse_states(text: str) -> list[GpuState]:
    """Read the output of `nvidia-smi --query-gpu` with the fields of `QUERY`."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(QUERY) and fields[0].isdecimal():
            index, name, driver, total, free, capability = fields
            found.append(
                GpuState(int(index), name, driver, _number(total), _number(free), _number(capability))
            )
    return found


def check_driver(banner: str, states: Sequence[GpuState], built_for: tuple[int, int] | None) -> list[Row]:
    """Compare the CUDA version that the driver supports with that of torch. banner: what `nvidia-smi` prints."""
    match = _CUDA.search(banner)
    supported = (int(match[1]), int(match[2])) if match else None
    driver = states[0].driver if states else "unknown"
    version_text = "unknown" if supported is None else "{}.{}".format(*supported)
    problem = ""
    if built_for is None:
        problem = "torch is not a CUDA build; run scripts/install.sh gpu"
    elif supported is not None and supported[0] < built_for[0]:
        # Within a major version of CUDA older drivers run newer builds.
        problem = (
            f"torch is built for CUDA {built_for[0]}.{built_for[1]}, and the driver supports {version_text} at most: "
            f"install a newer driver. The package index has no torch {PINS['torch']} and vLLM {VLLM.rstrip('.')} for "
            f"CUDA {supported[0]}; docs/install.md says what is elsewhere"
        )
    torch = "none" if built_for is None else "{}.{}".format(*built_for)
    return [(f"driver {driver}, CUDA {version_text}; torch's CUDA {torch}", problem)]


def check_toolkit(
    found: Toolkit | None, built_for: tuple[int, int] | None, env: Mapping[str, str]
) -> list[Row]:
    """Say with which CUDA toolkit vLLM would compile kernels, and whether these are for torch's CUDA.

    One that does not fit is no problem: engines are kept from it (`asyncrl.cuda_toolkit.engine_variables`), unless the
    user has said otherwise.
    """
    if found is None or built_for is None:
        return [("CUDA toolkit: none, so engines compile no kernels of FlashInfer", "")] if built_for else []
    line = f"CUDA toolkit {found.nvcc}" + (f", by {found.said_by}" if found.said_by else "")
    why = found.unfit(built_for)
    if not why:
        return [(f"{line}: torch's CUDA", "")]
    wanted = "{}.{}".format(*built_for)
    if not insisted(env) or importlib.util.find_spec(COMPILED) is not None:
        return [
            (f"{line}: {why}, torch's is {wanted}, so engines compile no kernels of FlashInfer with it", "")
        ]
    problem = (
        f"{SAMPLER}={env[SAMPLER]} has engines compile kernels of FlashInfer with {found.nvcc}, but {why} and torch's "
        f"is {wanted}: unset it, or point CUDA_HOME at a toolkit of CUDA {wanted}"
    )
    return [(f"{line}: {why}, torch's is {wanted}", problem)]


def check_state(state: GpuState) -> list[Row]:
    """Say whether vLLM runs on a GPU, and whether its memory is free."""
    if state.total is None or state.free is None:
        # A GPU that is divided reports the memory of its MIG devices nowhere here.
        return [(f"GPU {state.index} {state.name}: memory unknown", "")]
    free, total = state.free / MIB_PER_GIB, state.total / MIB_PER_GIB
    problem = ""
    if state.capability is not None and state.capability < LEAST_CAPABILITY:
        problem = (
            f"GPU {state.index} has compute capability {state.capability:g}, vLLM needs {LEAST_CAPABILITY:g}: leave it "
            f"out of {VARIABLE}"
        )
    elif state.capability is not None and state.capability < BF16_CAPABILITY:
        problem = (
            f"GPU {state.index} has compute capability {state.capability:g}, bfloat16 needs {BF16_CAPABILITY:g}: set "
            "model.dtype=float32"
        )
    elif free < FREE_SHARE * total:
        problem = (
            f"GPU {state.index} has {free:.1f} of {total:.1f} GiB free, an engine takes {FREE_SHARE:.0%}: end what "
            f"uses it (nvidia-smi shows that), leave it out of {VARIABLE}, or set engine.gpu_memory_utilization"
        )
    capability = "" if state.capability is None else f", compute capability {state.capability:g}"
    return [(f"GPU {state.index} {state.name}: {free:.1f} of {total:.1f} GiB free{capability}", problem)]


def check_nccl(version: str, env: Mapping[str, str]) -> list[Row]:
    """Say which NCCL connects the GPUs, and which variables change how."""
    problem = "" if version else "several GPUs need NCCL; run scripts/install.sh gpu"
    changed = [f"{name}={env[name]}" for name in _SETTINGS if env.get(name)]
    changes = f" ({', '.join(changed)})" if changed else ""
    return [(f"NCCL {version or 'missing'}{changes}", problem)]


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """Return how each two GPUs are connected, from the output of `nvidia-smi topo -m`: NV12, PIX, SYS, ..."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    header = next((words for words in lines if words[:1] == ["GPU0"] and words[1:2] != ["X"]), [])
    count = sum(1 for word in header if re.fullmatch(r"GPU\d+", word))
    found: dict[tuple[int, int], str] = {}
    for words in lines:
        row = re.fullmatch(r"GPU(\d+)", words[0]) if words else None
        if row and "X" in words[1 : count + 1]:
            one = int(row[1])
            found |= {(one, other): words[1 + other] for other in range(count) if one < other}
    return found


def check_topology(text: str) -> list[Row]:
    """Say which GPUs are connected by NVLink."""
    links = parse_topology(text)
    if not links:
        return [("connections of the GPUs: unknown", "")]
    groups = _connected([pair for pair, kind in links.items() if kind.startswith("NV")], links)
    others = sorted({kind for kind in links.values() if not kind.startswith("NV")})
    if len(groups) == 1:
        return [("all GPUs are connected by NVLink", "")]
    linked = [group for group in groups if len(group) > 1]
    between = ", ".join(others)
    if not linked:
        return [(f"GPUs are connected over PCIe ({between}): engine.tensor_parallel above 1 is slow", "")]
    named = " and ".join("-".join(map(str, group)) for group in linked)
    return [
        (
            f"NVLink within GPUs {named}, else {between}: keep an engine's GPUs together (placement.engines)",
            "",
        )
    ]


def _nccl_version() -> str:
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"] or ""
        if name.startswith("nvidia-nccl-"):
            return one.version
    return ""


def _why_none(listed: Sequence[object], env: Mapping[str, str]) -> str:
    if listed:
        return f"{VARIABLE}={env.get(VARIABLE)!r} hides all {len(listed)} GPUs: unset it"
    return (
        "vLLM's CUDA build is installed and no GPU is found: install the driver, give the container its GPUs "
        "(docker run --gpus all), or run scripts/install.sh cpu"
    )


def _is_shown(state: GpuState, shown: Sequence[str]) -> bool:
    return str(state.index) in shown or not any(name.isdecimal() for name in shown)


def _connected(pairs: Sequence[tuple[int, int]], links: Mapping[tuple[int, int], str]) -> list[list[int]]:
    """Return the groups of GPUs that `pairs` connect."""
    group_of = {number: {number} for pair in links for number in pair}
    for one, other in pairs:
        merged = group_of[one] | group_of[other]
        for number in merged:
            group_of[number] = merged
    return sorted({tuple(sorted(group)): sorted(group) for group in group_of.values()}.values())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
