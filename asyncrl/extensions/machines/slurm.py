"""The nodes of a Slurm allocation: one step each, `srun asyncrl serve node`, started again when it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from asyncrl.errors import ConfigError

SCONTROL_S = 30.0
PORTS = 20000, 10000
"""The first port of the heads of jobs, and how many there are: below those that a system gives connections."""


def job_port(env: Mapping[str, str] = os.environ) -> int:
    """Return the port of this job's head, which another job on the same machine does not have. Raises `ConfigError`
    outside of a job."""
    number = env.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        raise ConfigError(
            "--on slurm: SLURM_JOB_ID is missing: this is not inside a job of Slurm; see --render"
        )
    first, count = PORTS
    return first + int(number) % count


def other_nodes(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the allocation's nodes but for this one. Raises `ConfigError` outside of an allocation."""
    listed, own = env.get("SLURM_JOB_NODELIST", ""), env.get("SLURMD_NODENAME", "")
    if not listed or not own:
        raise ConfigError(
            "--on slurm: this is not inside a job of Slurm; write its files with --render FOLDER and submit them "
            "(sbatch FOLDER/train.sbatch)"
        )
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed],
            capture_output=True,
            text=True,
            timeout=SCONTROL_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"--on slurm: scontrol does not say which nodes {listed} are: {error}") from error
    return [name for name in done.stdout.split() if name != own]


def step(node: str, command: list[str]) -> list[str]:
    """Return the command that runs another one as a step on a node of this job. Where the processes of a job run in a
    container, the job's script starts the steps (`rendered.py`): srun is outside of it."""
    # Overlapping: the step of the batch script holds the first node's resources, and a restart meets the old step's.
    return ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist", node, "--export=ALL", *command]
