"""Processes stay on the processors next to their GPUs, by what `nvidia-smi` and sysfs say of them."""

import json
import os
import stat
import subprocess
import sys

import pytest

from asyncrl import numa
from asyncrl.numa import cpus_of, local_cpus

LISTED = """\
GPU 0: NVIDIA H100 (UUID: GPU-aaaa-0)
GPU 1: NVIDIA H100 (UUID: GPU-bbbb-1)
  MIG 1g.10gb     Device  0: (UUID: MIG-cccc-2)
"""
QUERIED = "0, GPU-aaaa-0, 00000000:1B:00.0\n1, GPU-bbbb-1, 00000001:9A:00.0\n"
# What a role does at its start, without vLLM's own look at what is installed.
ROLE = """
import json, os, sys
from pathlib import Path
from asyncrl import gpus, numa
gpus.on_cpu = lambda: False
print(json.dumps([sorted(numa.stay_near_gpus(devices=Path(sys.argv[1]))), sorted(os.sched_getaffinity(0))]))
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of two GPUs, the first next to the first of the processors that there are, the second to the last."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nif [ \"$1\" = -L ]; then cat <<'E'\n{LISTED}E\nelse cat <<'E'\n{QUERIED}E\nfi\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    cpus = sorted(os.sched_getaffinity(0))
    devices = tmp_path / "devices"
    for address, cpu in (("0000:1b:00.0", cpus[0]), ("0001:9a:00.0", cpus[-1])):
        (devices / address).mkdir(parents=True)
        (devices / address / "local_cpulist").write_text(f"{cpu}\n")
    return devices, cpus


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("5\n", {5}), ("", set())])
def test_lists_of_processors_are_read(text, cpus):
    assert cpus_of(text) == cpus


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["0"], [0]),
        (["1"], [-1]),
        (["0", "1"], [0, -1]),
        (["GPU-bbbb-1"], [-1]),
        (["GPU-bb"], [-1]),
        (["MIG-cccc-2"], [-1]),
        (["0", "7"], []),
        ([], []),
    ],
)
def test_the_processors_next_to_gpus_are_those_of_their_pci_devices(machine, names, places):
    devices, cpus = machine
    assert local_cpus(names, devices) == {cpus[place] for place in places}


def test_without_the_tool_or_the_node_nothing_is_known(machine, monkeypatch):
    devices, _ = machine
    (devices / "0001:9a:00.0" / "local_cpulist").unlink()
    assert local_cpus(["0", "1"], devices) == set()
    monkeypatch.setattr(numa, "nvidia_smi", lambda *_: "")
    assert local_cpus(["0"], devices) == set()


def role(devices, first="", **env):
    """Return what a role that starts found, and where it runs; `first` runs before it."""
    # DeepSpeed leaves a rank in the environment of the process that tests it.
    inherited = {name: value for name, value in os.environ.items() if name != numa.LOCAL_RANK}
    done = subprocess.run(
        [sys.executable, "-c", first + ROLE, str(devices)],
        env={**inherited, **env}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < os.cpu_count(), reason="this process has chosen processors"
)
@pytest.mark.skipif(os.cpu_count() < 2, reason="there is one processor")
def test_an_engine_and_a_trainers_rank_run_next_to_their_gpus_unless_somebody_has_chosen(machine):
    devices, cpus = machine
    first, last = [cpus[0]], [cpus[-1]]
    assert role(devices, CUDA_VISIBLE_DEVICES="0") == [first, first]
    assert role(devices, CUDA_VISIBLE_DEVICES="1") == [last, last]
    # The second rank of a trainer on both.
    assert role(devices, CUDA_VISIBLE_DEVICES="0,1", LOCAL_RANK="1") == [last, last]
    chosen = f"import os; os.sched_setaffinity(0, {{{cpus[-1]}}})\n"
    assert role(devices, chosen, CUDA_VISIBLE_DEVICES="0") == [[], last]
    if len(cpus) == 2:
        assert role(devices, CUDA_VISIBLE_DEVICES="0,1") == [[], cpus]


def test_a_machine_without_gpus_is_left_alone(monkeypatch):
    monkeypatch.setattr(numa, "found_gpus", lambda: ())
    before = os.sched_getaffinity(0)
    assert numa.stay_near_gpus() == frozenset()
    assert os.sched_getaffinity(0) == before
