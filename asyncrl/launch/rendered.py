"""What a run on Slurm or Kubernetes is submitted with, as files: nothing is submitted here. Pure.

The recipe goes along with all overrides applied, so that the files say everything.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.launch.spread import PORT

RECIPE = "recipe.json"
_HEAD = "head"
_TOKEN = "ASYNCRL_TOKEN"
RUNS = "/runs"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a cluster. `nodes`: machines in all, the head's among them; `gpus`: of each; `name`: of the run;
    `image`: a container image with asyncrl, for Kubernetes."""

    name: str
    nodes: int
    gpus: int = 0
    image: str = ""
    time: str = "24:00:00"


def render_slurm(config: Config, request: Request) -> dict[str, str]:
    """Return the files of a Slurm job by name. The folder must be on a file system that the job's first node sees."""
    gpus = [f"#SBATCH --gpus-per-node={request.gpus}"] if request.gpus else []
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={request.name}",
        f"#SBATCH --nodes={request.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        f"#SBATCH --time={request.time}",
        "#SBATCH --output=%x-%j.log",
        "# A node that fails costs its processes, not the job.",
        "#SBATCH --no-kill",
        "",
        "set -eu",
        "# The script runs on the first node, from a copy: paths are relative to where sbatch was called.",
        f'export {_TOKEN}="$(od -An -N32 -tx1 /dev/urandom | tr -d " \\n")"',
        f"run={shlex.quote(f'{config.run.folder}/{request.name}')}",
        'if [ -f "$run/config.json" ]; then',
        '    exec asyncrl train --resume "$run" --on slurm',
        "fi",
        f'exec asyncrl train "${{1:-{RECIPE}}}" --on slurm run.name={shlex.quote(request.name)}',
    ]
    return {"train.sbatch": "\n".join(lines) + "\n", RECIPE: _recipe(config)}


def render_k8s(config: Config, request: Request) -> dict[str, str]:
    """Return the manifests of a Kubernetes run by name. Raises `ConfigError` without an image.

    The head is a job of its own, with the volume of the run folder; the nodes are the pods of an indexed job, which
    find it by the name that the service gives it. Pods that fail are started again: a head resumes, a node registers
    anew.
    """
    import yaml

    if not request.image:
        raise ConfigError("--image: name a container image that has asyncrl and all it needs")
    name = _k8s_name(request.name)
    head = f"{name}-{_HEAD}"
    where = f"{head}.{name}"
    run = f"{RUNS}/{request.name}"
    on = (
        f"--on nodes --nodes {request.nodes - 1} --host 0.0.0.0 --advertise {where}"
        if request.nodes > 1
        else ""
    )
    train = (
        f"if [ -f {run}/config.json ]; then exec asyncrl train --resume {run} {on}; fi; "
        f"exec asyncrl train /recipe/{RECIPE} {on} run.folder={RUNS} run.name={shlex.quote(request.name)}"
    )
    join = f"exec asyncrl serve node --launcher http://{where}:{PORT} --name {name}-$JOB_COMPLETION_INDEX"
    manifests: list[dict[str, Any]] = [
        _kind("v1", "ConfigMap", name, data={RECIPE: _recipe(config)}),
        _kind(
            "v1",
            "Service",
            name,
            # Without an address of its own it gives the pods their names, also those that are not ready.
            spec={"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"asyncrl/run": name}},
        ),
        _kind(
            "v1",
            "PersistentVolumeClaim",
            f"{name}-runs",
            spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}},
        ),
        _job(name, head, _pod(name, request, train, {"hostname": head}, runs=True)),
    ]
    if request.nodes > 1:
        indexed = {
            "completionMode": "Indexed",
            "completions": request.nodes - 1,
            "parallelism": request.nodes - 1,
        }
        manifests.append(_job(name, f"{name}-node", _pod(name, request, join, {}), indexed))
    return {"run.yaml": yaml.safe_dump_all(manifests, sort_keys=False, width=1000)}


def secret_name(run: str) -> str:
    """Return the name of the Kubernetes secret that holds a run's token under the key `token`."""
    return f"{_k8s_name(run)}-token"


def _k8s_name(run: str) -> str:
    """Return a run's name as Kubernetes allows it."""
    return re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:40]


def _recipe(config: Config) -> str:
    return json.dumps(config.model_dump(mode="json"), indent=2) + "\n"


def _kind(version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def _job(run: str, name: str, pod: dict[str, Any], indexed: dict[str, Any] | None = None) -> dict[str, Any]:
    template = {"metadata": {"labels": {"asyncrl/run": run}}, "spec": pod}
    # Restarts are what a long run needs; its own limits end one that gets nowhere.
    return _kind("batch/v1", "Job", name, spec={"backoffLimit": 100, **(indexed or {}), "template": template})


def _pod(
    name: str, request: Request, command: str, extra: dict[str, Any], runs: bool = False
) -> dict[str, Any]:
    secret = {"secretKeyRef": {"name": secret_name(name), "key": "token"}}
    container: dict[str, Any] = {
        "name": "asyncrl",
        "image": request.image,
        "command": ["/bin/sh", "-c", command],
        "env": [{"name": _TOKEN, "valueFrom": secret}],
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "recipe", "mountPath": "/recipe"},
            *([{"name": "runs", "mountPath": RUNS}] if runs else []),
        ],
    }
    if request.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": request.gpus}}
    claim = {"name": "runs", "persistentVolumeClaim": {"claimName": f"{name}-runs"}}
    return {
        **extra,
        "subdomain": name,
        "restartPolicy": "OnFailure",
        "containers": [container],
        "volumes": [
            # The default of 64 MiB holds no weights.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "recipe", "configMap": {"name": name}},
            *([claim] if runs else []),
        ],
    }
