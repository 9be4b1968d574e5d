"""A run in a real job of a real Slurm of two nodes, which are both on this machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.slurm import other_nodes, step
from tests.runs import environment
from tests.waiting import wait_until

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
pytestmark = pytest.mark.slow
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
AuthInfo=socket={d}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=2 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    if missing := [name for name in NEEDED if not (shutil.which(name) or Path("/usr/sbin", name).exists())]:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install munge slurm-wlm")
    if os.geteuid() != 0:
        pytest.skip("the daemons of this Slurm run as root")
    folder = tmp_path / "slurm"
    for name in ("state", "spool/n1", "spool/n2"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    folder.chmod(0o755)
    host = subprocess.run(["hostname", "-s"], capture_output=True, text=True, check=True).stdout.strip()
    control, *ports = free_ports(3)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(d=folder, host=host, control=control, ports=ports))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    munge = [
        f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("pid-file", "log-file", "seed-file")
    ]
    daemons = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in (
            [
                "munged",
                "--force",
                "--foreground",
                f"--key-file={key}",
                f"--socket={folder}/munge.sock",
                *munge,
            ],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", "n1"],
            ["slurmd", "-D", "-N", "n2"],
        )
    ]
    wait_until(lambda: said("sinfo", "-h", "-o", "%t").split() == ["idle"], lambda: daemons[1].poll() is None)
    yield folder
    said("scancel", "--full", "--signal=KILL", "--user=root")
    for daemon in reversed(daemons):
        # slurmd may hang on SIGTERM while a step ends.
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_the_rendered_job_trains_on_all_nodes_of_its_allocation(slurm, workplace):
    (workplace / "bin").mkdir()
    asyncrl = workplace / "bin" / "asyncrl"
    asyncrl.write_text(f'#!/bin/sh\nexec {sys.executable} -m asyncrl "$@"\n')
    asyncrl.chmod(0o755)
    settings = ["train.num_steps=2", "eval.tasks=0", "engine.weight_transfer=collective", "run.folder=runs"]
    env = environment() | {"PATH": f"{asyncrl.parent}:{os.environ['PATH']}"}
    rendered = subprocess.run(
        [str(asyncrl), "train", str(workplace / "recipe.toml"), "--on", "slurm", "--nodes", "2", "--render", "job",
         *settings, "run.name=one"],
        env=env, cwd=workplace, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rendered.returncode == 0, rendered.stderr
    assert rendered.stdout.split() == ["job/train.sbatch", "job/recipe.json"]
    too_many = subprocess.run(
        ["sbatch", "--test-only", "--nodes=3", "job/train.sbatch"], cwd=workplace, check=False
    )
    assert too_many.returncode == 1

    job = subprocess.run(
        ["sbatch", "--wait", "job/train.sbatch", "job/recipe.json"],
        env=env, cwd=workplace, capture_output=True, text=True, check=False,
    )  # fmt: skip
    output = "".join(path.read_text() for path in workplace.glob("one-*.log"))
    assert job.returncode == 0, output + "".join(p.read_text() for p in (workplace / "runs").rglob("*.log"))
    assert "placement: head: trainer; n2: engine-0, rollout-0" in output
    summary = json.loads((workplace / "runs" / "one" / "summary.json").read_text())
    assert (summary["steps"], summary["restarts"]) == (2, {})
    # What ran on the other node came to the run folder.
    assert "engine: serving" in (workplace / "runs" / "one" / "logs" / "engine-0.log").read_text()


def test_outside_of_a_job_the_files_of_one_are_offered():
    with pytest.raises(ConfigError, match="write its files with --render FOLDER and submit them"):
        other_nodes({})


def test_a_step_is_one_task_on_one_node():
    assert " ".join(step("n2", ["asyncrl"])) == (
        "srun --overlap --nodes=1 --ntasks=1 --nodelist n2 --export=ALL asyncrl"
    )
