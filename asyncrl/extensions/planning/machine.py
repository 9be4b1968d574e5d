"""The memory of this machine's GPUs, asked without torch."""

from __future__ import annotations

from asyncrl.gpus import found_gpus, nvidia_smi

MIB = 2**20


def gpu_memory() -> list[int]:
    """Return the bytes of each GPU that this process may use; none where there is none, or its memory is not known."""
    names = found_gpus()
    if not names:
        return []
    text = nvidia_smi("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
    return choose(names, text)


def choose(names: tuple[str, ...], text: str) -> list[int]:
    """Return the memory of the GPUs `names` as `nvidia-smi` printed it. That of a MIG device is not in its list."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.count(",") == 2]
    found = []
    for name in names:
        sizes = [size for index, uuid, size in rows if name == index or uuid.startswith(name)]
        if len(sizes) != 1 or not sizes[0].isdecimal():
            return []
        found.append(int(sizes[0]) * MIB)
    return found
