"""Each kind of cluster is a word of `asyncrl train --on`, with what starts the nodes of a run there."""

from argparse import Namespace
from pathlib import Path

import pytest

from asyncrl.cli import parse
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines import slurm
from asyncrl.extensions.machines.spread import Launcher
from asyncrl.launch.cluster import Request, cluster_kinds

CONFIG = parse_config(
    {
        "model": {"path": "m"},
        "env": {"name": "gridworld", "services": 1},
        "engine": {"weight_transfer": "http"},
    }
)
KINDS = cluster_kinds()


def arguments(*words):
    return parse(["train", "recipe", *words])


def test_every_kind_is_a_word_of_the_command_and_adds_its_options():
    assert list(KINDS) == ["nodes", "ray", "slurm", "k8s"]
    found = arguments("--on", "ray", "--ray-address", "h:1", "--image", "i")
    assert (found.on, found.ray_address, found.image) == ("ray", "h:1", "i")


def test_on_ray_each_process_of_a_node_is_one_more_machine_and_none_is_counted_by_hand():
    found = KINDS["ray"].machines(arguments("--on", "ray"), CONFIG)
    # An engine, the environments' service and a worker; any free port.
    assert (found.nodes, found.port, found.comes_by_itself) == (3, 0, True)
    with pytest.raises(ConfigError, match="--nodes 2: on Ray each process is a node; leave it out"):
        KINDS["ray"].machines(arguments("--on", "ray", "--nodes", "2"), CONFIG)


def test_in_a_job_of_slurm_a_step_on_each_other_machine_starts_its_node(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "other_nodes", lambda: ["n2", "n3"])
    found = KINDS["slurm"].machines(arguments("--on", "slurm", "--port", "8701"), CONFIG)
    assert (found.nodes, found.port, found.comes_by_itself) == (2, 8701, True)
    steps = found.starter(Launcher(CONFIG, "http://head:8701", "token", tmp_path / "logs"))
    assert steps.env == {"ASYNCRL_TOKEN": "token"}
    assert {name: (command[0], command[-6:]) for name, command in steps.commands.items()} == {
        name: ("srun", ["serve", "node", "--launcher", "http://head:8701", "--name", name])
        for name in ("n2", "n3")
    }
    monkeypatch.setattr(slurm, "other_nodes", list)
    assert KINDS["slurm"].machines(arguments("--on", "slurm", "--port", "8701"), CONFIG) is None


def test_nothing_is_started_on_kubernetes_from_here():
    with pytest.raises(ConfigError, match="--on k8s: write the manifests with --render FOLDER"):
        KINDS["k8s"].machines(arguments("--on", "k8s"), CONFIG)


def test_files_are_written_for_slurm_and_kubernetes_with_the_command_that_submits_them():
    assert [name for name, kind in KINDS.items() if kind.renders] == ["slurm", "k8s"]
    request, folder = Request("my_run", 2), Path("job")
    assert KINDS["slurm"].submission(folder, request) == "sbatch job/train.sbatch job/recipe.json"
    assert (
        KINDS["k8s"]
        .submission(folder, request)
        .startswith("kubectl create secret generic my-run-token --from-literal=token=")
    )
    given = arguments("--on", "k8s", "--image", "registry/one")
    assert "image: registry/one" in KINDS["k8s"].render(given, CONFIG, request)["run.yaml"]


def test_a_plan_shows_what_a_job_of_slurm_asks_for():
    lines = {name: kind.asks(Namespace(site=None), CONFIG, Request("one", 2)) for name, kind in KINDS.items()}
    assert lines["slurm"][0].startswith("  processes         machine 1: ")
    assert lines["slurm"][1:4] == ["Slurm:", "  --job-name=one", "  --nodes=2"]
    assert (lines["nodes"], lines["ray"]) == ([], [])


def test_a_plan_shows_what_pods_and_volumes_of_kubernetes_ask_for(tmp_path):
    site = tmp_path / "site.toml"
    site.write_text('[k8s]\nstorage_class = "fast"\nrdma = "rdma/ib"\nmodels_claim = "models"\n')
    each = "cpu 72, nvidia.com/gpu 8, rdma/ib 1, memory 500Gi"
    request = Request("my_run", 3, gpus=8, memory_gib=500, storage_gib=350)
    assert KINDS["k8s"].asks(Namespace(site=site), CONFIG, request) == [
        "Kubernetes:",
        "  volume claim my-run-runs: 350Gi, storage class fast",
        f"  job my-run-head: 1 pod(s), each {each}; mounts my-run-runs, models",
        f"  job my-run-node: 2 pod(s), each {each}; mounts models",
    ]
    plain = KINDS["k8s"].asks(Namespace(site=None), CONFIG, Request("one", 1))
    assert plain[1:] == [
        "  volume claim one-runs: 100Gi",
        "  job one-head: 1 pod(s), each cpu 8, memory 64Gi; mounts one-runs",
    ]
