"""What `asyncrl train --on` and `--render` do with each kind of cluster. Imports nothing heavy before it is asked."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import ConfigError
from asyncrl.launch.cluster import ClusterKind, Request

if TYPE_CHECKING:
    from asyncrl.config import Config
    from asyncrl.extensions.machines.spread import ClusterOptions, Launcher, NodeStarter


class Nodes(ClusterKind):
    """Somebody starts `asyncrl serve node` on each machine."""

    def machines(self, args: argparse.Namespace, config: Config) -> ClusterOptions:
        """See `ClusterKind`."""
        from asyncrl.extensions.machines.spread import PORT, ClusterOptions

        if args.nodes < 1:
            raise ConfigError("--on nodes: say with --nodes how many machines there are beside this one")
        return ClusterOptions(args.nodes, args.host, args.port or PORT, args.advertise)


class Slurm(ClusterKind):
    """The run is a job, with a step for each further machine of its allocation."""

    renders = True

    def machines(self, args: argparse.Namespace, config: Config) -> ClusterOptions | None:
        """See `ClusterKind`."""
        from asyncrl.extensions.machines.slurm import job_port, other_nodes
        from asyncrl.extensions.machines.spread import ClusterOptions

        if args.nodes:
            raise ConfigError(f"--nodes {args.nodes}: a Slurm job has the nodes it was given; leave it out")
        names = other_nodes()
        port = args.port or job_port()
        starter = partial(_steps, names)
        return ClusterOptions(len(names), args.host, port, args.advertise, starter) if names else None

    def render(self, args: argparse.Namespace, config: Config, request: Request) -> dict[str, str]:
        """See `ClusterKind`."""
        from asyncrl.extensions.machines.rendered import render_slurm
        from asyncrl.extensions.machines.site import load_site
        from asyncrl.extensions.machines.spread import check_fits

        check_fits(config, request.nodes, request.gpus)
        return render_slurm(config, request, load_site(args.site).slurm)

    def submission(self, folder: Path, request: Request) -> str:
        """See `ClusterKind`."""
        return f"sbatch {folder / 'train.sbatch'} {folder / 'recipe.json'}"

    def asks(self, args: argparse.Namespace, config: Config, request: Request) -> list[str]:
        """See `ClusterKind`. The options of its script."""
        from asyncrl.extensions.machines.spread import machines_text

        processes = f"  processes         {machines_text(config, request.nodes, request.gpus)}"
        lines = self.render(args, config, request)["train.sbatch"].splitlines()
        options = [f"  {line.removeprefix('#SBATCH ')}" for line in lines if line.startswith("#SBATCH")]
        return [processes, "Slurm:", *options]


class Ray(ClusterKind):
    """Each process of a further machine is a node, which Ray places."""

    def add_options(self, machines: argparse._ArgumentGroup) -> None:
        """See `ClusterKind`."""
        machines.add_argument(
            "--ray-address",
            default="",
            metavar="HOST:PORT",
            help="with --on ray the cluster, which this machine is in; by default that in RAY_ADDRESS, else one of "
            "this machine alone",
        )

    def machines(self, args: argparse.Namespace, config: Config) -> ClusterOptions | None:
        """See `ClusterKind`."""
        from asyncrl.extensions.machines.ray_nodes import count_nodes
        from asyncrl.extensions.machines.spread import ClusterOptions

        if args.nodes:
            raise ConfigError(f"--nodes {args.nodes}: on Ray each process is a node; leave it out")
        starter = partial(_ray_nodes, args.ray_address)
        return ClusterOptions(count_nodes(config), args.host, args.port, args.advertise, starter)


class Kubernetes(ClusterKind):
    """The head is a job, and the nodes are the pods of another one: nothing is started from here."""

    renders = True

    def add_options(self, machines: argparse._ArgumentGroup) -> None:
        """See `ClusterKind`."""
        machines.add_argument(
            "--image", default="", help="with --on k8s: the container image, which has asyncrl"
        )

    def machines(self, args: argparse.Namespace, config: Config) -> ClusterOptions | None:
        """See `ClusterKind`."""
        raise ConfigError(
            "--on k8s: write the manifests with --render FOLDER, and apply them (kubectl apply -f FOLDER/run.yaml)"
        )

    def render(self, args: argparse.Namespace, config: Config, request: Request) -> dict[str, str]:
        """See `ClusterKind`."""
        from asyncrl.extensions.machines.rendered import render_k8s
        from asyncrl.extensions.machines.site import load_site
        from asyncrl.extensions.machines.spread import check_fits

        check_fits(config, request.nodes, request.gpus)
        return render_k8s(config, replace(request, image=args.image), load_site(args.site).k8s)

    def submission(self, folder: Path, request: Request) -> str:
        """See `ClusterKind`."""
        from asyncrl.extensions.machines.rendered import secret_name

        return (
            f"kubectl create secret generic {secret_name(request.name)} "
            f"--from-literal=token=$(openssl rand -hex 32) && kubectl apply -f {folder / 'run.yaml'}"
        )

    def asks(self, args: argparse.Namespace, config: Config, request: Request) -> list[str]:
        """See `ClusterKind`. The pods and volumes of its manifests."""
        import yaml

        # Which image it is says nothing of what is asked for.
        named = argparse.Namespace(site=args.site, image="IMAGE")
        found = ["Kubernetes:"]
        for one in yaml.safe_load_all(self.render(named, config, request)["run.yaml"]):
            name, spec = one["metadata"]["name"], one.get("spec", {})
            if one["kind"] == "PersistentVolumeClaim":
                of_class = (
                    f", storage class {found_class}" if (found_class := spec.get("storageClassName")) else ""
                )
                found.append(f"  volume claim {name}: {spec['resources']['requests']['storage']}{of_class}")
            if one["kind"] == "Job":
                found.append(_pods_text(name, spec))
        return found


def _pods_text(name: str, job: dict[str, Any]) -> str:
    """Say how many pods a job has, and what each asks for and mounts."""
    pod = job["template"]["spec"]
    requests = pod["containers"][0]["resources"]["requests"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    asked = ", ".join(f"{resource} {amount}" for resource, amount in requests.items())
    mounted = f"; mounts {', '.join(claims)}" if claims else ""
    return f"  job {name}: {job.get('completions', 1)} pod(s), each {asked}{mounted}"


def _steps(names: list[str], launcher: Launcher) -> NodeStarter:
    """Return what keeps a step of this job running on each of its nodes."""
    from asyncrl.credentials import VARIABLE
    from asyncrl.extensions.machines.node_commands import NodeCommands
    from asyncrl.extensions.machines.slurm import step
    from asyncrl.process_start import python_module

    serve_node = [*python_module("asyncrl"), "serve", "node", "--launcher", launcher.url]
    commands: Mapping[str, list[str]] = {name: step(name, [*serve_node, "--name", name]) for name in names}
    launcher.logs.mkdir(exist_ok=True)
    return NodeCommands(commands, launcher.logs, {VARIABLE: launcher.token})


def _ray_nodes(address: str, launcher: Launcher) -> NodeStarter:
    from asyncrl.extensions.machines.ray_nodes import RayNodes

    return RayNodes(launcher.config, address, launcher.url, launcher.token)
