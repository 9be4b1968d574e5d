"""Keeps a process on the processors next to its GPUs.

On a machine of two sockets a copy between the memory of one and a GPU of the other crosses the link between them, and
eight engines whose cores are moved about do so all the time. Memory follows: a page is taken from the node of the
processor that first writes to it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.gpus import found_gpus, list_gpus, nvidia_smi

log = logging.getLogger(__name__)

DEVICES = Path("/sys/bus/pci/devices")
QUERY = ("--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader")
SHORTENED = ("GPU-", "MIG-")
"""What names begin with that may be cut off."""
LOCAL_RANK = "LOCAL_RANK"
"""Environment variable of a trainer's rank: which of the visible GPUs is its own."""


def stay_near_gpus(env: Mapping[str, str] = os.environ, devices: Path = DEVICES) -> frozenset[int]:
    """Run this process, and those that it starts, on the processors next to its GPUs; return them.

    Nothing is done, and nothing returned, where no GPU or no node of it is known, where all processors are next to
    them, and where somebody has chosen processors for this process: its affinity is then less than the machine.
    devices: the folder of PCI devices of sysfs.
    """
    names = found_gpus()
    if LOCAL_RANK in env and names:
        names = (names[int(env[LOCAL_RANK]) % len(names)],)
    allowed = os.sched_getaffinity(0)
    if len(allowed) < (os.cpu_count() or 1):
        return frozenset()
    near = frozenset(local_cpus(names, devices) & allowed)
    if not near or near == allowed:
        return frozenset()
    os.sched_setaffinity(0, near)
    log.info("runs on %d of %d processors, those next to GPU %s", len(near), len(allowed), ", ".join(names))
    return near


def local_cpus(names: Sequence[str], devices: Path = DEVICES) -> set[int]:
    """Return the processors next to GPUs, named as `CUDA_VISIBLE_DEVICES` names them; none where they are not known of
    each.

    Sources: `nvidia-smi --query-gpu`, `local_cpulist` of the PCI devices in sysfs.
    """
    addresses = _addresses()
    found: set[int] = set()
    for name in names:
        address = addresses.get(name) or next(
            (
                where
                for known, where in addresses.items()
                if name.startswith(SHORTENED) and known.startswith(name)
            ),
            "",
        )
        try:
            found |= cpus_of((devices / address / "local_cpulist").read_text() if address else "")
        except (OSError, ValueError):
            address = ""
        if not address:
            return set()
    return found


def cpus_of(text: str) -> set[int]:
    """Read a list of processors such as "0-3,8". Raises `ValueError`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _addresses() -> dict[str, str]:
    """Return the PCI addresses of the machine's GPUs, as sysfs names them, by their indices, UUIDs and MIG devices."""
    found: dict[str, str] = {}
    by_uuid = {gpu.uuid: gpu.mig for gpu in list_gpus()}
    for line in nvidia_smi(*QUERY).splitlines():
        index, uuid, address = (part.strip() for part in line.split(","))
        # nvidia-smi writes the domain in eight digits, sysfs in four.
        domain, _, rest = address.partition(":")
        where = f"{domain[-4:]}:{rest}".lower()
        found |= dict.fromkeys((index, uuid, *by_uuid.get(uuid, ())), where)
    return found
