"""What a run on Slurm or Kubernetes is submitted with, as files: nothing is submitted here. Pure.

The recipe goes along with all overrides applied, so that the files say everything.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.site import K8sSite, SlurmContainer, SlurmSite
from asyncrl.extensions.machines.slurm import PORTS, step
from asyncrl.extensions.machines.spread import PORT
from asyncrl.launch.cluster import Request

RECIPE = "recipe.json"
_HEAD = "head"
_TOKEN = "ASYNCRL_TOKEN"
RUNS = "/runs"
MODELS = "/models"


def render_slurm(config: Config, request: Request, site: SlurmSite | None = None) -> dict[str, str]:
    """Return the files of a Slurm job by name. The folder must be on a file system that the job's first node sees."""
    site = site or SlurmSite()
    gpus = [f"#SBATCH --gpus-per-node={request.gpus}"] if request.gpus else []
    given = {"partition": site.partition, "account": site.account, "qos": site.qos}
    named = [f"#SBATCH --{option}={value}" for option, value in given.items() if value]
    # Without them a job gets one core of each machine, and the memory that goes with it.
    share = ["#SBATCH --exclusive", "#SBATCH --mem=0"]
    if site.cpus:
        memory = site.memory or f"{request.memory_gib}G"
        share = [f"#SBATCH --cpus-per-task={site.cpus}", f"#SBATCH --mem={memory}"]
    scratch = f'{shlex.quote(site.scratch)}/asyncrl-"${{USER:-$(id -un)}}-$SLURM_JOB_ID"'
    models = shlex.quote(site.models) if site.models else '"$scratch/huggingface"'
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={request.name}",
        f"#SBATCH --nodes={request.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        *share,
        *named,
        f"#SBATCH --time={site.time}",
        "#SBATCH --output=%x-%j.log",
        "# A node that fails costs its processes, not the job.",
        "#SBATCH --no-kill",
        *(f"#SBATCH {line}" for line in site.lines),
        "",
        "set -eu",
        *site.setup,
        "# On a disk of each machine: home folders are often on a network.",
        f"scratch={scratch}",
        f'export XDG_STATE_HOME="$scratch/state" HF_HOME={models}',
        "# The script runs on the first node, from a copy: paths are relative to where sbatch was called.",
        f'export {_TOKEN}="$(od -An -N32 -tx1 /dev/urandom | tr -d " \\n")"',
        f"run={shlex.quote(f'{config.run.folder}/{request.name}')}",
        *(_container_steps(request, site) if site.container.image else _PLAIN),
        'if [ -f "$run/config.json" ]; then',
        '    train --resume "$run"',
        "else",
        f'    train "${{1:-{RECIPE}}}" run.name={shlex.quote(request.name)}',
        "fi",
    ]
    return {"train.sbatch": "\n".join(lines) + "\n", RECIPE: _recipe(config)}


_PLAIN = ['train() { exec asyncrl train "$@" --on slurm; }']
"""The run starts the steps of the other machines itself."""
_AGAIN_S = 10
"""Pause before a node's step is started again, in seconds."""


def _container_steps(request: Request, site: SlurmSite) -> list[str]:
    """Return the lines that start the head and the nodes as steps in containers. The script itself is outside: there is
    no srun in an image."""
    folders = [shlex.quote(one) for one in (site.scratch, site.models, *site.container.mounts) if one]
    inside = _words_of_container(site.container, ['"$PWD"', *folders], bool(request.gpus))
    first, count = PORTS
    lines = ['own="$SLURMD_NODENAME"']
    where = ""
    if request.nodes > 1:
        lines += [
            f"port=$(({first} + SLURM_JOB_ID % {count}))",
            'for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do',
            '    [ "$node" != "$own" ] || continue',
            "    # A node that ends is started again; with this script all steps end.",
            "    while :; do",
            f"        {' '.join(step(_NODE, inside))} \\",
            '            asyncrl serve node --launcher "http://$own:$port" --name "$node" \\',
            '            >> "node-$node-$SLURM_JOB_ID.log" 2>&1 || :',
            f"        sleep {_AGAIN_S}",
            "    done &",
            "done",
            "trap 'kill $(jobs -p) 2> /dev/null || :' EXIT",
        ]
        where = f' --on nodes --nodes {request.nodes - 1} --host 0.0.0.0 --advertise "$own" --port "$port"'
    return [*lines, f'train() {{ {" ".join(step(_OWN, inside))} asyncrl train "$@"{where}; }}']


_NODE, _OWN = '"$node"', '"$own"'


def _words_of_container(container: SlurmContainer, mounts: list[str], gpus: bool) -> list[str]:
    """Return what stands between a step's options and its command, as words of bash. mounts: quoted folders."""
    image = shlex.quote(container.image)
    # A folder without a place of its own inside is at the same one.
    binds = [one if ":" in one else f"{one}:{one}" for one in mounts]
    if container.runtime == "pyxis":
        return [
            f"--container-image={image}",
            f"--container-mounts={','.join(binds)}",
            '--container-workdir="$PWD"',
        ]
    devices = ["--nv"] if gpus else []
    return ["apptainer", "exec", *devices, *(f"--bind {one}" for one in binds), '--pwd "$PWD"', image]


def render_k8s(config: Config, request: Request, site: K8sSite | None = None) -> dict[str, str]:
    """Return the manifests of a Kubernetes run by name. Raises `ConfigError` without an image.

    The head is a job of its own, with the volume of the run folder; the nodes are the pods of an indexed job, which
    find it by the name that the service gives it. Pods that fail are started again: a head resumes, a node registers
    anew.
    """
    import yaml

    if not request.image:
        raise ConfigError("--image: name a container image that has asyncrl and all it needs")
    site = site or K8sSite()
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
            spec={
                "accessModes": ["ReadWriteOnce"],
                **({"storageClassName": site.storage_class} if site.storage_class else {}),
                "resources": {"requests": {"storage": f"{site.storage_gib or request.storage_gib}Gi"}},
            },
        ),
        _job(name, head, _pod(name, request, site, train, {"hostname": head}, runs=True)),
    ]
    if request.nodes > 1:
        indexed = {
            "completionMode": "Indexed",
            "completions": request.nodes - 1,
            "parallelism": request.nodes - 1,
        }
        manifests.append(_job(name, f"{name}-node", _pod(name, request, site, join, {}), indexed))
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
    name: str, request: Request, site: K8sSite, command: str, extra: dict[str, Any], runs: bool = False
) -> dict[str, Any]:
    secret = {"secretKeyRef": {"name": secret_name(name), "key": "token"}}
    container: dict[str, Any] = {
        "name": "asyncrl",
        "image": request.image,
        "command": ["/bin/sh", "-c", command],
        "env": [{"name": _TOKEN, "valueFrom": secret}, *_hub(site)],
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "recipe", "mountPath": "/recipe"},
            *([{"name": "runs", "mountPath": RUNS}] if runs else []),
            *([{"name": "models", "mountPath": MODELS}] if site.models_claim else []),
        ],
        "resources": _resources(request, site),
    }
    if site.rdma:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    models = {"name": "models", "persistentVolumeClaim": {"claimName": site.models_claim}}
    tolerations = [{"key": key, "operator": "Exists"} for key in site.tolerations]
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
            *([models] if site.models_claim else []),
        ],
        **({"nodeSelector": site.node_selector} if site.node_selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
    }


def _hub(site: K8sSite) -> list[dict[str, Any]]:
    """Return the variables by which the hub's client finds its token and its cache."""
    token = {"secretKeyRef": {"name": site.hub_secret, "key": "token"}}
    return [
        *([{"name": "HF_TOKEN", "valueFrom": token}] if site.hub_secret else []),
        *([{"name": "HF_HOME", "value": MODELS}] if site.models_claim else []),
    ]


def _resources(request: Request, site: K8sSite) -> dict[str, Any]:
    """Return what a pod asks for. Memory is limited, too, so that a pod is not the first to be evicted."""
    memory = f"{site.memory_gib or request.memory_gib}Gi"
    exact = {
        **({"nvidia.com/gpu": request.gpus} if request.gpus else {}),
        **({site.rdma: 1} if site.rdma else {}),
        "memory": memory,
    }
    return {"requests": {"cpu": site.cpu or 8 * (request.gpus + 1), **exact}, "limits": exact}
